"""launch/score.py: files of every kind, what is kept, what is asked again, what is shown."""

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from carr_jax import scoring
from carr_jax.observe.verdicts import show_verdicts
from carr_jax.observe.viewer import write_trajectories
from carr_jax.records import End, Group, InputError, Question, Rubric, Score, Verdict
from carr_jax.rewards.history import from_plain
from carr_jax.rewards.judge import ExactJudge
from carr_jax.stored import to_json

ROOT = Path(__file__).parents[1]
A = "https://a.com/1"
QUESTION = Question(
    "q1",
    "Where was Ada born?",
    "Kalkar",
    rubrics=(Rubric("<E1> was born in <E0>.", (A,)), Rubric("<E1> was a queen.", (A,))),
    entities={"E0": ("Kalkar",), "E1": ("Ada",)},
)


def row(response=f"Ada was born in Kalkar [1]({A}).\n## Exact Answer\nKalkar\n"):
    pages = {A: "Ada was born in Kalkar."}
    return {"question": to_json(QUESTION), "response": response, "pages": pages}


ABORTED = {
    "history": [{"role": "user", "content": "q"}, {"role": "assistant", "aborted_content": "x"}],
    "label": "X",
}
CUT = {"history": [{"role": "user", "content": "q"}], "label": "X", "task_unfinished": True}


def write(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


class Counting(ExactJudge):
    """Counts its outcome calls; fails as long as `down`."""

    def __init__(self, down=False):
        self.down, self.calls = down, 0

    async def outcome(self, question, response):
        self.calls += 1
        if self.down:
            return Verdict("outcome", "unknown", None, raw="down")
        return await super().outcome(question, response)


def scored(path, judge, citations="tolerant"):
    out = path.with_suffix(".verdicts")
    return asyncio.run(scoring.score_file(path, out, judge, ("exact", citations))), out


def test_a_file_is_scored_in_its_order(tmp_path):
    rows = [row(), "", row("nothing"), "{", ABORTED, '"text"', CUT]
    found, out = scored(write(tmp_path / "t.jsonl", rows), Counting())
    assert [(v.place[-2:], v.end, v.score.status) for v in found.verdicts] == [
        (":1", End.ANSWERED, "ok"),
        (":3", End.ANSWERED, "ok"),
        (":5", End.ENGINE_ERROR, "unknown"),
        (":7", End.CONTEXT_BUDGET, "ok"),
    ]
    assert [bad.place[-2:] for bad in found.bad] == [":4", ":6"]
    assert "must be a JSON object" in found.bad[1].reason
    assert [json.loads(line)["place"] for line in out.read_text().splitlines()] == [
        v.place for v in found.verdicts
    ]
    assert scoring.ends(found.verdicts) == {"answered": 2, "unknown": 1, "context_budget": 1}
    assert scoring.means(found.verdicts) == {
        "cited pages": 0.5,
        "rubrics": 2.0,
        "identified": 1.0,
        "supported": 1.0,
        "connected": 1.0,
        "outcome": 0.5,
        "rubric reward": 0.5,
    }
    assert scoring.spent(found.verdicts) == (5, 0, 0.0)  # two outcomes, two identifications, one support


def test_what_is_known_is_kept_and_what_is_not_is_asked_again(tmp_path):
    path = write(tmp_path / "t.jsonl", [row(), row("nothing")])
    down, judge = Counting(down=True), Counting()
    assert [v.score.status for v in scored(path, down)[0].verdicts] == ["unknown", "unknown"]
    first, out = scored(path, judge)
    assert (judge.calls, first.kept) == (2, 0)
    again, _ = scored(path, judge)
    assert (judge.calls, again.kept, again.verdicts) == (2, 2, first.verdicts)
    write(path, [row("new"), row()])
    assert (scored(path, judge)[0].kept, judge.calls) == (1, 3)
    assert (scored(path, judge, "strict_reference")[0].kept, judge.calls) == (0, 5)  # judged in another way
    out.write_bytes(out.read_bytes()[:-40])  # killed in the middle of a line
    assert (scored(path, judge, "strict_reference")[0].kept, judge.calls) == (1, 6)


def test_verdicts_are_there_before_the_end(tmp_path):
    path = write(tmp_path / "t.jsonl", [row(f"{i}") for i in range(3 * scoring.IN_FLIGHT)])
    out = tmp_path / "out"
    seen = []

    def progress(count):
        seen.append(len(scoring.read_verdicts(out)))
        if count == scoring.IN_FLIGHT + 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scoring.score_file(path, out, Counting(), ("exact", "tolerant"), progress))
    assert seen == list(range(1, scoring.IN_FLIGHT + 6))
    judge = Counting()
    found = asyncio.run(scoring.score_file(path, out, judge, ("exact", "tolerant")))
    assert (found.kept, judge.calls) == (scoring.IN_FLIGHT + 5, 2 * scoring.IN_FLIGHT - 5)


def test_files_of_a_run_and_whole_json_files(tmp_path):
    _, trajectory = from_plain(row())
    values = np.array([1.0])
    group = Group(QUESTION, (trajectory,), (Score("ok"),), values, values, np.array([True]))
    write_trajectories(tmp_path / "step.jsonl.gz", [group])
    assert scored(tmp_path / "step.jsonl.gz", Counting())[0].verdicts[0].score.rubric == 1.0
    (tmp_path / "dump.json").write_text(json.dumps([{"history": [CUT["history"]] * 2, "label": ["X", "Y"]}]))
    assert len(scored(tmp_path / "dump.json", Counting())[0].verdicts) == 2


@pytest.mark.parametrize("name", ["gone.jsonl", "t.jsonl.gz", "t.json"])
def test_files_that_cannot_be_read(tmp_path, name):
    (tmp_path / "t.jsonl.gz").write_text("plain")
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(InputError, match=name):
        scored(tmp_path / name, Counting())


def test_the_summary_fits_a_terminal():
    console = Console(file=io.StringIO(), width=80)
    means = {"cited pages": 4.2, "rubrics": 10, "identified": 7.5, "supported": 5, "connected": 2.5}
    counts = {"unknown": 1, "context_budget": 2, "answered": 1234}
    show_verdicts("t", means | {"outcome": 0.5, "rubric reward": 0.25}, counts, (9, 12_000, 0.5), console)
    text = console.file.getvalue()
    lines = [line.split() for line in text.splitlines()]
    assert ["finished", "1,234"] in lines and ["context", "budget", "2", "score", "0"] in lines
    assert [line[2].count("█") for line in lines if len(line) > 2 and "█" in line[2]] == [24, 18, 12, 6]
    assert "9 judge calls, 12,000 tokens, $0.50" in text
    show_verdicts("t", {}, {"unknown": 1}, (0, 0, 0.0), console)


def command(*arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "launch/score.py"), *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command(tmp_path):
    path = write(tmp_path / "t.jsonl", [row(), "{", ABORTED])
    done = command(path)
    assert done.returncode == 0 and "1 bad rows" in done.stdout and "engine_error" in done.stdout
    assert len((tmp_path / "t.jsonl.verdicts.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gone.jsonl",), "no such file"),
        ((__file__, "--config=configs/nobody.py"), "there is no such file"),
        ((__file__, "--config=configs/c_grpo_4b.py", "--config.judge.tries=0"), "config.judge.tries=0 must be"),
        ((__file__, "--config=configs/sft_tiny.py"), "no section judge"),
        ((__file__, "--citations=loose"), "tolerant, strict_reference"),
        ((__file__, f"--out={__file__}"), "a file of its own"),
        ((), "FILE"),
    ],
)
def test_the_command_refuses_in_one_line(arguments, says):
    done = command(*arguments)
    assert done.returncode == 2 and says in done.stdout and done.stdout.count("\n") == 1
