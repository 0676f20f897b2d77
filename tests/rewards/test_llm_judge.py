"""The LLM judge against a server that reads its prompts, answers by a script, and fails in every known way."""

import asyncio
import contextlib
import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from scripted_judge import answer, trajectory

sys.path.append(str(Path(__file__).parents[1] / "llm"))
from stub import TRANSPORT, USELESS, FakeTime, Stub

from carr_jax.calls.errors import BudgetSpent, NotRecorded
from carr_jax.calls.ledger import Ledger, Prices
from carr_jax.calls.patience import Patience
from carr_jax.llm.ask import Asked
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.errors import Unusable
from carr_jax.records import Question, Rubric
from carr_jax.rewards.group import score_group
from carr_jax.rewards.llm_judge import JudgeOptions, LLMJudge, counted, read_names, read_outcome, read_proofs

FREE = Prices()
FILM, ADA, TOWN = "https://w.org/Film", "https://w.org/Ada", "https://w.org/Kalkar"
PAGES = [
    (FILM, "Facts. The Film was directed by Ada Byron. The Film was directed by Bo Diddley."),
    (ADA, "Facts. Ada Byron was born in Kalkar. Ada Byron was born in Xanten."),
    (TOWN, "Facts. Kalkar lies on the Rhine."),
]
QUESTION = Question(
    "q",
    "Where was the director of the Film born?",
    "Kalkar",
    rubrics=(
        Rubric("The Film was directed by <E1>."),
        Rubric("<E1> was born in <E0>."),
        Rubric("<E0> lies on the Rhine."),
    ),
)


def mind(body):
    """Reads the blocks of a prompt; believes what is plainly said, and pages that hold a statement verbatim."""
    user = body["messages"][1]["content"]
    blocks = dict(re.findall(r"\[\[begin (\w+) \w{12}\]\]\n(.*?)\n\[\[end", user, re.DOTALL))
    said = {"code": re.search(r'its "code" is "(\w+)"', user)[1]}
    if "ACCEPTED" in blocks:
        final = re.search(r"## Exact Answer\n(.+)", blocks["RESPONSE"])
        said["final_answer"] = final and final[1]
        said |= {"reason": "so", "correct": said["final_answer"] in blocks["ACCEPTED"].split("\n")}
    elif "STATEMENTS" in blocks:
        for entity in sorted(set(re.findall(r"<(E\d)>", blocks["STATEMENTS"]))):
            name = re.search(rf"{entity} is ([\w ]+)", blocks["RESPONSE"])
            said[entity] = name and name[1]
    else:
        for name in sorted(n for n in blocks if n.startswith("S")):
            pages = [p for p in blocks if p.startswith("P") and blocks[name] in blocks[p]]
            said[name] = {"pages": pages, "quote": "", "supported": bool(pages)}
    return json.dumps(said)


def response(town, director, *cited):
    links = " ".join(f"[[{i}]({url})]" for i, url in enumerate(cited, 1))
    return trajectory(answer(town, f"E0 is {town}. E1 is {director}. {links}"), PAGES)


GROUP = [
    response("Kalkar", "Ada Byron", FILM, ADA, TOWN),  # all three
    response("Kalkar", "Ada Byron", FILM, ADA),  # two: the river page is not cited
    response("Xanten", "Ada Byron", FILM, ADA, TOWN),  # wrong, and two are connected
    response("Kalkar", "Bo Diddley", FILM, ADA, TOWN),  # right: one is connected, one supported and cut off
    response("Kalkar", "Ada Byron", TOWN),  # one
]
OUTCOMES, RUBRICS = [1, 1, 0, 1, 1], [1, 2 / 3, 2 / 3, 1 / 3, 1 / 3]
EVERYTHING = "carr_all_rollouts"  # the mix in which every rubric counts


@contextlib.asynccontextmanager
async def judging(folder, stub, *, prices=FREE, budget=0.0, replay=False, request_s=30.0, votes=1, tries=3):
    ledger = Ledger(folder / "ledger.jsonl", prices, budget)
    options = Patience(request_s=request_s, attempts=3)
    cache = ReplyCache(folder / "replies.sqlite", replay)
    async with ChatClient("m", (Endpoint(stub.url),), {}, ledger, options, FakeTime().timing()) as client:
        yield LLMJudge(client, cache, JudgeOptions(votes=votes, tries=tries))


def values(score):
    return (score.outcome, score.rubric, score.rubric_scores)


def test_the_three_steps_through_real_prompts(tmp_path):
    async def test():
        async with Stub(mind) as stub, judging(tmp_path, stub) as judge:
            scores = await score_group(QUESTION, GROUP, judge, EVERYTHING)
        assert [s.outcome for s in scores] == OUTCOMES
        assert [s.rubric for s in scores] == pytest.approx(RUBRICS)
        first = scores[0].verdicts
        assert [v.step for v in first] == ["outcome", "identify", "support"]
        assert first[0].parsed is True and first[1].parsed == {"E0": "Kalkar", "E1": "Ada Byron"}
        assert first[2].parsed == [True, True, True] and first[2].evidence == ((FILM,), (ADA,), (TOWN,))
        assert all((v.calls, v.invalid, v.tokens, v.cached) == (1, 0, 110, False) for v in first)
        assert all(json.loads(v.raw)["code"] for v in first)
        assert [s.connected for s in scores[3].rubric_scores] == [False, False, True]

    asyncio.run(test())


def test_a_repeated_run_asks_nobody_and_says_the_same(tmp_path):
    async def test():
        async with Stub(mind) as stub:
            async with judging(tmp_path, stub) as judge:
                first = await score_group(QUESTION, GROUP, judge, EVERYTHING)
            asked = len(stub.calls)
            assert asked == 3 * len(GROUP)
            async with judging(tmp_path, stub) as judge:
                again = await score_group(QUESTION, GROUP, judge, EVERYTHING)
            async with judging(tmp_path, stub, replay=True) as judge:
                replayed = await score_group(QUESTION, GROUP, judge, EVERYTHING)
                with pytest.raises(NotRecorded):
                    await score_group(QUESTION, [response("Bonn", "Bo", FILM)], judge, EVERYTHING)
            assert len(stub.calls) == asked
        assert list(map(values, first)) == list(map(values, again)) == list(map(values, replayed))
        assert all(v.cached and v.cost_usd == v.tokens == v.calls == 0 for s in again for v in s.verdicts)

    asyncio.run(test())


FAULTS = [*TRANSPORT, *USELESS, "http_400", "http_403", "redirect", "endless"]


def test_with_a_fifth_of_all_calls_failing_nothing_is_other_than_known_or_unknown(tmp_path):
    """No fault makes a number; and what faults left unknown is known when they are over."""

    async def scored(stub, folder, **options):
        async with judging(folder, stub, request_s=2.0, tries=2, **options) as judge:
            groups = (score_group(QUESTION, rotated(i), judge, EVERYTHING) for i in range(32))
            return [score for group in await asyncio.gather(*groups) for score in group]

    def rotated(i):
        """The group in other words, so that no two calls are alike."""
        return [dataclasses.replace(t, response=t.response.replace("E0 is", f"Note {i}. E0 is")) for t in GROUP]

    async def test():
        async with Stub(mind) as stub:
            right = await scored(stub, tmp_path / "right")
            stub.faults, stub.share = FAULTS, 0.2
            stub.given.clear()
            hurt = await scored(stub, tmp_path / "hurt")
            assert set(stub.given) == {*FAULTS, "none"}, "every fault happened"
            stub.share = 0.0
            healed = await scored(stub, tmp_path / "hurt")
        unknown = [s for s in hurt if not s.known]
        assert 0 < len(unknown) < len(hurt) / 2
        assert all(s.reason for s in unknown)
        known = [(values(s), values(r)) for s, r in zip(hurt, right, strict=True) if s.known]
        assert [s for s, _ in known] == [r for _, r in known]
        assert list(map(values, healed)) == list(map(values, right)), "nothing useless was kept"

    asyncio.run(test())


def test_a_budget_that_is_spent_ends_scoring_and_a_larger_one_goes_on(tmp_path):
    async def test():
        prices = Prices(1.0, 1.0, 1.0)  # a call costs $0.00011, and some $0.0035 are held for it
        async with Stub(mind) as stub:
            async with judging(tmp_path, stub, prices=prices, budget=0.0045) as judge:
                with pytest.raises(BudgetSpent):
                    for _ in range(2):
                        await score_group(QUESTION, GROUP, judge, EVERYTHING)
                await asyncio.sleep(0.05)  # siblings that were under way end
            asked = len(stub.calls)
            assert 0 < asked < 3 * len(GROUP)
            async with judging(tmp_path, stub, prices=prices, budget=1.0) as judge:
                scores = await score_group(QUESTION, GROUP, judge, EVERYTHING)
            assert [s.outcome for s in scores] == OUTCOMES
            assert len(stub.calls) == 3 * len(GROUP), "what was paid for is not asked again"

    asyncio.run(test())


@pytest.mark.parametrize("tries", [1, 2])
def test_a_reply_that_cannot_be_used_is_asked_again_so_often(tmp_path, tries):
    async def test():
        async with Stub(mind) as stub, judging(tmp_path, stub, tries=tries) as judge:
            stub.script = ["prose"] * tries
            verdict = await judge.outcome(QUESTION, answer("Kalkar"))
            assert (verdict.status, verdict.parsed, verdict.calls, verdict.invalid) == (
                "unknown",
                None,
                tries,
                tries,
            )
            assert verdict.raw.startswith("the reply holds no object") and "looks right" in verdict.raw
            assert verdict.tokens == 110 * tries

    asyncio.run(test())


def test_reasoning_alone_is_counted(tmp_path):
    async def test():
        async with Stub(mind) as stub, judging(tmp_path, stub) as judge:
            stub.script = ["reasoning"]
            verdict = await judge.outcome(QUESTION, answer("Kalkar"))
            assert (verdict.status, verdict.parsed, verdict.from_reasoning) == ("ok", True, 1)

    asyncio.run(test())


def test_three_judges_vote_each_with_an_entry_of_its_own(tmp_path):
    def changeable(body):
        """The second of three draws says the opposite."""
        said = json.loads(mind(body))
        return json.dumps(said | {"correct": said["correct"] ^ (body["seed"] % 3 == 1)})

    async def test():
        async with Stub(changeable) as stub, judging(tmp_path, stub, votes=3) as judge:
            for cached in (False, True):
                verdict = await judge.outcome(QUESTION, answer("Kalkar"))
                assert (verdict.status, verdict.parsed, verdict.cached) == ("ok", True, cached)
                assert verdict.calls == (0 if cached else 3)
            assert sorted(body["seed"] for body in stub.calls) == [0, 1, 2]

    asyncio.run(test())


def test_a_question_without_placeholders_needs_no_call(tmp_path):
    async def test():
        async with Stub(mind) as stub, judging(tmp_path, stub) as judge:
            verdict = await judge.identify(
                dataclasses.replace(QUESTION, rubrics=(Rubric("Water is wet."),)), "r"
            )
            assert (verdict.status, verdict.parsed, stub.calls) == ("ok", {}, [])

    asyncio.run(test())


# ------------------------------------------------------------------------------------------ what a reply says


@pytest.mark.parametrize(
    ("said", "correct"),
    [
        ({"final_answer": "Kalkar", "correct": True}, True),
        ({"final_answer": 1995, "correct": True}, True),
        ({"final_answer": "Kalkar", "correct": False}, False),
        ({"final_answer": None, "correct": False}, False),
        ({"final_answer": "None", "correct": False}, False),
    ],
)
def test_outcomes(said, correct):
    assert read_outcome(said) == {"correct": correct}


@pytest.mark.parametrize(
    "said",
    [
        {"final_answer": None, "correct": True},  # right, without an answer
        {"final_answer": "none", "correct": True},
        {"final_answer": "Kalkar", "correct": "yes"},
        {"final_answer": "Kalkar", "correct": 1},
        {"final_answer": "Kalkar", "correct": None},
        {"final_answer": ["Kalkar", "Bonn"], "correct": True},
    ],
)
def test_outcomes_that_are_none(said):
    with pytest.raises(Unusable):
        read_outcome(said)


def test_names():
    said = {"E0": " Kalkar ", "E1": None, "E2": "NONE", "E3": "unknown", "E4": 1995, "E5": "..."}
    assert read_names(said) == {"E0": "Kalkar", "E1": None, "E2": None, "E3": None, "E4": "1995", "E5": None}
    for bad in (True, ["a"], {"name": "a"}):
        with pytest.raises(Unusable, match="'E0'"):
            read_names({"E0": bad})


@pytest.mark.parametrize(
    ("pages", "proof"),
    [
        (["P1"], (FILM,)),
        (["P2", "P1", "P2"], (ADA, FILM)),
        (["[P2]", "http://w.org/Film/"], (ADA, FILM)),  # by address too
        ([], ()),  # supported by nothing
        (["P3", "P0", "https://evil.org", ""], ()),  # by what nobody gave
        (["P9", "P1"], (FILM,)),
    ],
)
def test_a_proof_names_a_page_that_was_given(pages, proof):
    said = {"S1": {"pages": pages, "supported": True}, "S2": {"pages": pages, "supported": False}}
    assert read_proofs(said, [FILM, ADA]) == {"S1": proof, "S2": ()}


@pytest.mark.parametrize(
    "value",
    [True, None, [], {}, {"supported": True}, {"supported": "yes", "pages": []}, {"supported": 1, "pages": []},
     {"supported": True, "pages": "P1"}, {"supported": True, "pages": [1]}],
)  # fmt: skip
def test_proofs_that_are_none(value):
    with pytest.raises(Unusable, match="'S1'"):
        read_proofs({"S1": value}, [FILM])


# -------------------------------------------------------------------------------------------------- counting


def votes(*said):
    return [Asked(None, "no reply") if value is None else Asked({"x": value}, raw="r") for value in said]


@pytest.mark.parametrize(
    ("said", "winner"),
    [
        ((True,), True),
        ((True, False, True), True),
        ((True, None, True), True),  # the third could not have changed it
        ((False, False, True, True, False), False),
    ],
)
def test_a_majority_of_all_votes_decides(said, winner):
    verdict = counted("outcome", votes(*said), lambda value: value)
    assert (verdict.status, verdict.parsed) == ("ok", {"x": winner})


@pytest.mark.parametrize(
    "said", [(None,), (True, False, None), (True, None, None), (None, None, None), ("a", "b", "c")]
)
def test_no_majority_is_unknown(said):
    verdict = counted("outcome", votes(*said), lambda value: value)
    assert (verdict.status, verdict.parsed) == ("unknown", None) and verdict.raw


def test_votes_on_names_and_proofs_agree_where_it_matters():
    names = counted("identify", votes("The Rhine", "rhine", "Danube"), lambda n: n and n.casefold()[-5:])
    assert names.parsed == {"x": "The Rhine"}
    proofs = counted("support", votes((FILM,), (), (ADA,)), bool)
    assert proofs.parsed == {"x": (FILM,)}
