"""Step metrics against values worked out by hand, and the log against kills."""

import json
import math
from dataclasses import replace

import fake_run
import numpy as np
import pytest
from fake_run import group, known, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.observe.metrics import MetricsLog, rollout_metrics
from carr_jax.records import End, Score, ToolCall, ToolResult, Turn, Verdict


def two_groups():
    """A group with a spread, an unknown and an over-length end; one without a spread, with a format error."""
    paid = Verdict("outcome", "ok", True, tokens=100, cost_usd=0.5, calls=2, invalid=1, from_reasoning=1)
    replayed = Verdict("identify", "ok", {}, tokens=900, cost_usd=9.0, cached=True, calls=5, invalid=5)
    first = group(
        (
            trajectory(0, calls=3),
            trajectory(1, calls=1),
            trajectory(2, End.TOOL_ERROR, 0),
            trajectory(3, End.TURN_BUDGET, 2),
        ),
        (
            known(1.0, "ccsi-", citations=4, verdicts=(paid, replayed), skipped_calls=2),
            known(0.0, "si---", citations=1, verdicts=(paid,)),
            Score("unknown"),
            known(0.0),
        ),
        [0.82, 0.0, math.nan, 0.0],
    )
    second = group(
        (trajectory(0, calls=1), trajectory(1, End.FORMAT_ERROR, 0)),
        (known(0.0, citations=1, skipped_calls=5), known(0.0)),
        [0.0, 0.0],
    )
    return [first, second]


def test_values_by_hand():
    row = rollout_metrics(two_groups())
    expected = {
        "reward/mixed": 0.82 / 5,
        "reward/outcome": 1 / 5,
        "reward/rubric": (2 / 5 + 0) / 2,
        "reward/unknown_rate": 1 / 6,
        "reward/zero_spread_groups": 1 / 2,
        "reward/dropped_groups": 0.0,
        # judged and finished: "ccsi-" and "si---"; the answer of the second group was never judged
        "carr/identified": (4 + 2) / 2,
        "carr/supported": (3 + 1) / 2,
        "carr/connected": (2 + 0) / 2,
        "carr/rubrics": 5.0,
        "carr/citations": (4 + 1 + 1) / 3,
        "carr/judged": 2 / 3,
        "agent/tool_calls": (3 + 1 + 0 + 2 + 1 + 0) / 6,
        "agent/turns": (4 + 2 + 1 + 3 + 2 + 1) / 6,
        # prompt 5, each call 7, the last turn 4
        "agent/tokens": 9 + 7 * 7 / 6,
        "agent/generated_tokens": 4 + 4 * 7 / 6,
        "agent/finished": 3 / 6,
        "agent/format_error": 1 / 6,
        "agent/over_length": 1 / 6,
        "agent/tool_error": 1 / 6,
        "agent/engine_error": 0.0,
        "agent/missing_logprobs": 0.0,
        "agent/deadline": 0.0,
        "judge/calls": 4.0,
        "judge/invalid_rate": 0.5,
        "judge/from_reasoning": 2.0,
        "judge/cached": 1.0,
        "judge/skipped": 7.0,
        "judge/tokens": 200.0,
        "judge/cost_usd": 1.0,
    }
    assert row == pytest.approx(expected)


def test_unknown_scores_never_count_as_zero():
    row = rollout_metrics(
        [group((trajectory(0), trajectory(1)), (known(1.0), Score("unknown")), [1.0, math.nan])]
    )
    assert row["reward/outcome"] == row["reward/mixed"] == 1.0
    assert row["reward/unknown_rate"] == 0.5
    assert row["reward/dropped_groups"] == 1.0
    assert "reward/zero_spread_groups" not in row  # nothing to compare
    assert "reward/rubric" not in row and "carr/connected" not in row


def test_the_share_of_missing_logprobs_is_one_of_tokens():
    """Not a mean over trajectories; what nobody sampled is not counted."""
    whole, other = trajectory(0, calls=2), trajectory(1, calls=0)
    logprobs = other.logprobs.copy()
    logprobs[5:7] = np.nan
    row = rollout_metrics(
        [group((whole, replace(other, logprobs=logprobs)), (known(1.0), known(0.0)), [1.0, 0.0])]
    )
    assert row["agent/missing_logprobs"] == 2 / (12 + 4)


def test_reasons_of_failed_tool_calls_are_counted():
    results = [ToolResult("", reason=r) for r in ("timeout", "", "http_404", "timeout")]
    turn = Turn(5, 9, "t", "", tuple(ToolCall("browser.open", {}, result) for result in (*results, None)))
    row = rollout_metrics([group((trajectory(0, calls=0, turns=(turn,)),), (Score("unknown"),), [math.nan])])
    assert {k: v for k, v in row.items() if k.startswith("tools/")} == {
        "tools/http_404": 1.0,
        "tools/timeout": 2.0,
    }


def test_a_step_of_nothing_has_sums_only():
    row = rollout_metrics([])
    assert set(row) == {f"judge/{key}" for key in "calls cached skipped from_reasoning tokens cost_usd".split()}
    assert set(row.values()) == {0.0}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1))
def test_no_value_is_ever_nan_and_ends_add_up(seed, skill):
    row = rollout_metrics([fake_run.random_group(fake_run.random.Random(seed), skill)])
    assert all(math.isfinite(value) for value in row.values())
    ends = ("finished", "format_error", "over_length", "tool_error", "engine_error")
    assert sum(row[f"agent/{end}"] for end in ends) == pytest.approx(1)
    if "carr/connected" in row:
        assert row["carr/connected"] <= row["carr/supported"] <= row["carr/identified"] <= row["carr/rubrics"]


# -------------------------------------------------------------------------------------------------- the log


def write_steps(path, steps):
    log = MetricsLog(path)
    for step in steps:
        log.append({"step": step, "reward/mixed": step / 10})
    return log


def test_log_round_trip_and_plain_values(tmp_path):
    log = write_steps(tmp_path / "run" / "metrics.jsonl", [1])
    log.append({"step": 2, "a": np.float32(0.5), "b": math.nan, "c": np.int64(3), "d": math.inf, "e": "x"})
    assert MetricsLog.read(log.path) == [
        {"step": 1, "reward/mixed": 0.1},
        {"step": 2, "a": 0.5, "b": None, "c": 3.0, "d": None, "e": "x"},
    ]
    assert "NaN" not in log.path.read_text() and "Infinity" not in log.path.read_text()


def test_a_row_without_step_is_refused(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="step"):
        log.append({"loss": 1.0})
    assert not log.path.exists()


def test_every_torn_tail_is_passed_over_and_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, [1, 2])
    whole = path.read_bytes()
    last = whole.index(b"\n") + 1
    for cut in range(last, len(whole)):  # killed after any byte of the second line
        path.write_bytes(whole[:cut])
        assert [row["step"] for row in MetricsLog.read(path)] == [1]
        write_steps(path, [2])
        assert path.read_bytes() == whole


def test_a_broken_line_inside_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step":\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl line 2"):
        MetricsLog.read(path)


def test_truncate_after(tmp_path):
    log = write_steps(tmp_path / "metrics.jsonl", [1, 2, 3, 4])
    log.truncate_after(2)
    assert [row["step"] for row in MetricsLog.read(log.path)] == [1, 2]
    log.append({"step": 3})
    assert [json.loads(line)["step"] for line in log.path.read_text().splitlines()] == [1, 2, 3]
    log.truncate_after(0)
    assert MetricsLog.read(log.path) == []
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_truncate_before_the_first_row(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.truncate_after(0)
    assert MetricsLog.read(log.path) == []
