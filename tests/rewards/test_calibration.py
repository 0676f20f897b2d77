"""How a judge is measured, on verdicts made by hand; and the labels that the built-in world gives."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "llm"))
from stub import FakeTime, Stub

from carr_jax.calibrating import read_labels, world_labels
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.ledger import Ledger, Prices
from carr_jax.records import InputError, Question, Rubric, Verdict
from carr_jax.rewards.calibration import (
    Label,
    cost_per_trajectory,
    decisions,
    judge_labels,
    label_from_json,
    measure,
    mistakes,
)
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rewards.llm_judge import JudgeOptions, LLMJudge
from carr_jax.stored import to_json

ROOT = Path(__file__).parents[2]
QUESTION = Question("q", "Who?", "A", rubrics=(Rubric("<E0> is red."), Rubric("<E1> knows <E0>.")))
OUTCOME = Label("outcome", "k", QUESTION, True, "r")
NAMES = Label("identify", "k", QUESTION, {"E0": ["The Hague", None], "E1": [None]}, "r")
SUPPORT = Label("support", "k", QUESTION, [True, False], names={"E0": "A", "E1": "B"}, indices=(0, 1))


def ok(step, parsed, **fields):
    return Verdict(step, "ok", parsed, **fields)


@pytest.mark.parametrize(
    ("label", "verdict", "right"),
    [
        (OUTCOME, ok("outcome", True), [True]),
        (OUTCOME, ok("outcome", False), [False]),
        (OUTCOME, ok("outcome", "true"), [False]),
        (NAMES, ok("identify", {"E0": "hague", "E1": None}), [True, True]),
        (NAMES, ok("identify", {"E0": None, "E1": "Bo"}), [True, False]),
        (NAMES, ok("identify", {"E0": "Delft", "E1": "none"}), [False, True]),
        (NAMES, ok("identify", {"E0": "Delft"}), [False, False]),
        (SUPPORT, ok("support", [True, False]), [True, True]),
        (SUPPORT, ok("support", [False, False]), [False, True]),
        (SUPPORT, ok("support", [True]), [False, False]),
        (SUPPORT, Verdict("support", "unknown", None), [False, False]),
    ],
)
def test_decisions(label, verdict, right):
    assert [d.right for d in decisions(label, verdict)] == right


def test_measures_by_hand():
    """Two outcome labels judged twice: three right of four, one of two always the same, one unknown."""
    labels = [OUTCOME, OUTCOME, SUPPORT]
    cheap, dear = dict(calls=1, invalid=0, cost_usd=0.25), dict(calls=3, invalid=2, cost_usd=0.75)
    first = [ok("outcome", True, **cheap), ok("outcome", True, **dear), ok("support", [True, True])]
    second = [ok("outcome", True, **cheap), Verdict("outcome", "unknown", None, **dear)]
    found = measure(labels, [first, [*second, ok("support", [True, True], cost_usd=1.0)]])
    assert list(found) == ["outcome", "support"]
    outcome, support = found["outcome"], found["support"]
    assert (outcome.labels, outcome.decisions, outcome.accuracy, outcome.agreement) == (2, 2, 0.75, 0.5)
    assert (outcome.unknown, outcome.invalid, outcome.calls, outcome.cost_usd) == (0.25, 0.5, 8, 0.5)
    assert (support.decisions, support.accuracy, support.agreement, support.cost_usd) == (2, 0.5, 1.0, 0.5)
    assert cost_per_trajectory(found) == 1.0
    assert [(m.step, d.name) for m, d in mistakes(labels, first)] == [("support", "<E1> knows <E0>.")]


def test_a_judge_that_is_never_known_is_never_right():
    found = measure([OUTCOME], [[Verdict("outcome", "unknown", None)]] * 3)["outcome"]
    assert (found.accuracy, found.agreement, found.unknown) == (0.0, 0.0, 1.0)


def test_a_broken_judge_is_unknown():
    class Broken(ExactJudge):
        async def outcome(self, question, response):
            raise OSError("down")

    (verdict,) = asyncio.run(judge_labels([OUTCOME], Broken()))
    assert verdict.status == "unknown" and "down" in verdict.raw


# ------------------------------------------------------------------------------------------- the built-in world


@pytest.fixture(scope="module")
def world():
    return world_labels()


def test_the_world_gives_each_kind_of_label(world):
    kinds = {(label.step, label.kind) for label in world}
    assert {kind for step, kind in kinds if step == "outcome"} == set(
        "expert guesser citer shouted wrong hedged silent".split()
    )
    assert {kind for step, kind in kinds if step == "identify"} == set(
        "expert guesser citer wrong unnamed".split()
    )
    assert {kind for step, kind in kinds if step == "support"} == set(
        "expert unread misnamed elsewhere".split()
    )
    flags = [flag for label in world if label.step == "support" for flag in label.expected]
    assert 0.25 < sum(flags) / len(flags) < 0.75
    assert world_labels(3) == world[: len(world_labels(3))]


def test_the_exact_judge_is_right_but_for_two_names_on_one_page(world):
    """It looks for names and not for the relation between them, so a page that tells another fact of the same
    two things deceives it: two statements of 264, both where the page that states the fact was not read."""
    verdicts = asyncio.run(judge_labels(world, ExactJudge()))
    found = measure(world, [verdicts])
    assert found["outcome"].accuracy == found["identify"].accuracy == 1.0
    wrong = mistakes(world, verdicts)
    assert [(label.kind, d.said) for label, d in wrong] == [("unread", True)] * 2
    for label, decision in wrong:
        rubric = next(r for r in label.question.rubrics if r.text == decision.name)
        names = [label.names[entity] for entity in rubric.entities]
        assert any(all(name in text for name in names) for text in label.pages.values())


# --------------------------------------------------------------------------------------------- files and calls


def test_labels_from_a_file(tmp_path, world):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps(to_json(label)) + "\n" for label in world[:16]))
    read = read_labels(path)
    assert [to_json(label) for label in read] == [to_json(label) for label in world[:16]]
    first = asyncio.run(judge_labels(read, ExactJudge()))
    assert measure(read, [first])["identify"].accuracy == 1.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"step": "taste"}, "step 'taste' is not one of outcome, identify, support"),
        ({"expected": 1}, "expected 1 is not what the step outcome decides"),
        ({"step": "identify"}, "expected True is not what"),
        ({"step": "support", "expected": [True]}, "expected .True. is not what"),
        ({"more": 1}, "unexpected keyword"),
        ({"question": None}, "NoneType"),
    ],
)
def test_bad_labels_are_named(tmp_path, change, says):
    row = to_json(OUTCOME)
    assert label_from_json(row) == Label(**{**vars(OUTCOME), "question": label_from_json(row).question})
    path = tmp_path / "l.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | change) + "\n")
    with pytest.raises(InputError, match=f"l.jsonl:2: .*{says}"):
        read_labels(path)


def test_each_time_asks_again_and_a_repeated_run_asks_nobody(tmp_path):
    """A model that answers by the seed: its draws are told apart, and do not agree."""

    def mind(body):
        code = body["messages"][1]["content"].rpartition('"code" is "')[2][:12]
        right = body["seed"] % 2 == 0
        return json.dumps({"code": code, "final_answer": "A", "reason": "so", "correct": right})

    async def draws(stub):
        times = []
        for draw in range(3):
            ledger = Ledger(tmp_path / "ledger.jsonl", Prices(1.0, 1.0, 1.0))
            cache = ReplyCache(tmp_path / "replies.sqlite")
            timing = FakeTime().timing()
            async with ChatClient("m", (Endpoint(stub.url),), {}, ledger, timing=timing) as client:
                times.append(await judge_labels([OUTCOME], LLMJudge(client, cache, JudgeOptions(draw=draw))))
        return measure([OUTCOME], times)["outcome"]

    async def test():
        async with Stub(mind) as stub:
            first = await draws(stub)
            assert len(stub.calls) == 3 and (first.calls, first.agreement) == (3, 0.0)
            assert first.accuracy == pytest.approx(2 / 3) and first.cost_usd == pytest.approx(110e-6)
            again = await draws(stub)
            assert len(stub.calls) == 3 and (again.calls, again.accuracy) == (0, first.accuracy)

    asyncio.run(test())


def command(*arguments):
    script = [sys.executable, str(ROOT / "launch/calibrate_judge.py"), *arguments]
    done = subprocess.run(script, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_the_command_can_refuse(tmp_path, world):
    labels = tmp_path / "l.jsonl"
    rows = [label for label in world if label.step == "outcome"][:4]
    wrong = [Label(**{**vars(rows[0]), "expected": not rows[0].expected}), *rows[1:]]
    labels.write_text("".join(json.dumps(to_json(label)) + "\n" for label in wrong))
    given = (f"--labels={labels}", f"--out={tmp_path / 'c'}", "--times=2")
    status, said = command(*given)
    assert status == 0 and "75.0%" in said and "not right: outcome, expert" in said
    report = json.loads((tmp_path / "c" / "report.json").read_text())
    assert report["judge"] == {"kind": "exact"} and report["steps"]["outcome"]["accuracy"] == 0.75
    assert command(*given, "--at-least=0.75")[0] == 0
    status, said = command(*given, "--at-least=0.76")
    assert status == 1 and "an accuracy of 75.0% is below --at-least=0.76" in said
    status, said = command(*given, "--at-least=2")
    assert status == 2 and said.count("\n") == 1
