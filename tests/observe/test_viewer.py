"""Trajectories keep every bit through the file, and text through the viewer stays text."""

import gzip
import json
import math
import random
from dataclasses import replace

import fake_run
import numpy as np
import pytest
from fake_run import HOSTILE, QUESTION, known, trajectory

from carr_jax.observe.viewer import (
    clean,
    number,
    read_trajectories,
    shorten,
    trajectory_to_text,
    write_trajectories,
)
from carr_jax.records import End, Score, ToolCall, Turn
from carr_jax.stored import to_json


@pytest.fixture
def groups():
    rng = random.Random(3)
    # two groups of the same question must stay apart
    return [fake_run.random_group(rng, 0.5), fake_run.random_group(rng, 0.5, '\ud800 \u2028 \\ " \n')]


def test_round_trip(tmp_path, groups):
    path = tmp_path / "trajectories" / "step_000001.jsonl.gz"
    write_trajectories(path, groups)
    back = list(read_trajectories(path))
    assert len(back) == 2 and any(np.isnan(g.rewards).any() for g in groups)
    for old, new in zip(groups, back, strict=True):
        np.testing.assert_array_equal(old.rewards, new.rewards)
        np.testing.assert_array_equal(old.advantages, new.advantages)
        np.testing.assert_array_equal(old.trained, new.trained)
        assert old.scores == new.scores and old.question == new.question
        for a, b in zip(old.trajectories, new.trajectories, strict=True):
            assert to_json(a) == to_json(b) and a.turns == b.turns and a.end is b.end
            for name in ("ids", "mask", "logprobs", "versions"):
                assert getattr(a, name).dtype == getattr(b, name).dtype
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_a_missing_logprob_is_null_in_the_file_and_nan_again(tmp_path, groups):
    odd = np.float32(
        [np.nan, -1e-45, -0.1, -1 / 3, -20, 0, -0.0]
    )  # denormal, inexact, signed: every bit counts
    first = groups[0].trajectories[0]
    logprobs = np.resize(odd, first.logprobs.size)
    routes = np.zeros((first.ids.size, 2, 2), np.int16)
    group = replace(
        groups[0],
        trajectories=(replace(first, logprobs=logprobs, routes=routes), *groups[0].trajectories[1:]),
    )
    write_trajectories(tmp_path / "t.gz", [group])
    back = next(read_trajectories(tmp_path / "t.gz")).trajectories[0]
    np.testing.assert_array_equal(back.logprobs, logprobs)
    np.testing.assert_array_equal(np.signbit(back.logprobs), np.signbit(logprobs))
    assert back.routes is None  # too large for this file
    for line in gzip.decompress((tmp_path / "t.gz").read_bytes()).decode().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in the file"))


def test_one_strict_json_line_per_trajectory(tmp_path, groups):
    write_trajectories(tmp_path / "t.gz", groups)
    lines = gzip.decompress((tmp_path / "t.gz").read_bytes()).decode().splitlines()
    assert len(lines) == 16
    for line in lines:
        row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in the file"))
        assert {"question", "trajectory", "score", "reward", "advantage"} <= set(row)


def test_equal_groups_give_equal_bytes(tmp_path, groups):
    write_trajectories(tmp_path / "a.gz", groups)
    write_trajectories(tmp_path / "b.gz", groups)
    data = (tmp_path / "a.gz").read_bytes()
    assert data == (tmp_path / "b.gz").read_bytes()
    assert data[4:8] == b"\0\0\0\0"  # the gzip header's time


def test_a_bad_line_is_named(tmp_path):
    with gzip.open(tmp_path / "t.gz", "wt") as file:
        file.write('{"group": 0}\n')
    with pytest.raises(ValueError, match=r"t\.gz line 1"):
        list(read_trajectories(tmp_path / "t.gz"))


def test_text_shows_the_whole_story():
    text = trajectory_to_text(QUESTION, trajectory(4, calls=1), known(1.0, "csi--"), 0.76, 1.25)
    for part in (
        "# fake-7, sample 4",
        "answered, right; reward 0.76, advantage +1.25",
        "> " + QUESTION.question,
        "> I look for hop 1.",
        '    search(query="hop 1 ", num=3)',
        "    [1] The Salt Archive, Port Mavra",
        "Answer\n\n    The founder was **Ilsa",
        "| connected | Ilsa Tørnqvist was born in Port Mavra. |",
        "| supported | Ilsa Tørnqvist founded the Salt Archive in 1931. |",
        "| identified | the Salt Archive stands in Port Mavra. |",
        "| not identified | <E3> was the first keeper of <E2>. |",
    ):
        assert part in text


def test_untrusted_text_cannot_pose_as_structure():
    text = trajectory_to_text(QUESTION, trajectory(0, text=f"\n# Fake\n{HOSTILE}"), known(0.0), 0.0, 0.0)
    assert "\n# Fake" not in text and "> # Fake" in text
    assert "\x1b" not in text


def test_ill_formed_turns_are_decoded():
    turn = Turn(5, 9, "half a thought", "", (), "tool call is not closed")
    broken = trajectory(0, End.FORMAT_ERROR, 0, turns=(turn,))
    shown = trajectory_to_text(QUESTION, broken, known(0.0), 0.0, 0.0, lambda ids: f"ids {list(ids)}")
    assert "Ill-formed: tool call is not closed" in shown
    assert "    ids [5, 6, 7, 8]" in shown
    assert "> half a thought" in trajectory_to_text(QUESTION, broken, known(0.0), 0.0, 0.0)


def test_unknown_and_unexecuted_are_said():
    turn = Turn(5, 9, "", "", (ToolCall("open", {"id": 1}),))
    failed = trajectory(0, End.ENGINE_ERROR, 0, turns=(turn,))
    text = trajectory_to_text(QUESTION, failed, Score("unknown", reason="judge timed out"), math.nan, 0.0)
    assert "engine error, score unknown; reward unknown, advantage 0" in text
    assert "Observation: not executed" in text and "Unknown: judge timed out" in text


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [(0.0, True, "0"), (-0.00001, True, "0"), (1.5, True, "+1.5"), (-2.0, True, "-2"), (10.0, False, "10"),
     (None, False, "unknown"), (math.nan, True, "unknown")],
)  # fmt: skip
def test_numbers(value, sign, text):
    assert number(value, sign) == text


def test_shorten_and_clean():
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdef", 3) == "abc … (3 more characters)"
    assert clean("a\x1b[2J\u202eb\ud800\r\nc\t山") == "a\ufffd[2J\ufffdb\ufffd\nc\t山"
