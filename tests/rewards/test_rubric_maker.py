"""Rubrics by a model that answers by a script, over real HTTP: repairs, what is refused, what is unknown."""

import asyncio
import contextlib
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "llm"))
from stub import USELESS, FakeTime, Stub

from carr_jax.calls.errors import BudgetSpent
from carr_jax.calls.ledger import Ledger, Prices
from carr_jax.calls.patience import Patience
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import Endpoint
from carr_jax.records import Question, Rubric
from carr_jax.rewards.prompts import CLOSING, rubric_prompt
from carr_jax.rewards.rubric_maker import MakerOptions, evidence, from_evidence, make_rubrics

WALK = [
    {"subject": "Emma", "relation": "author", "object": "<E1>", "url": "u", "query": "q"},
    {"subject": "<E1>", "relation": "birthplace", "object": "<E0>", "url": "u", "query": "q"},
]
QUESTION = Question(
    "q",
    "Where was the author of Emma born?",
    "Kalkar",
    entities={"E0": ("Kalkar",), "E1": ("Ada Byron", "Ada")},
    rubrics=(Rubric("<E1> is the author of Emma."), Rubric("The birthplace of <E1> is <E0>.")),
    metadata={"walk": WALK, "type": "chain"},
)
LEAKY = ["<E1> wrote Emma.", "Ada Byron was born in <E0>."]
CLEAN = ["<E1> wrote Emma.", "<E1> was born in <E0>."]


def blocks(text):
    return dict(re.findall(r"\[\[begin (\w+) \w{12}\]\]\n(.*?)\n\[\[end", text, re.DOTALL))


def writer(*drafts):
    """A mind whose n-th reply holds the n-th draft, then always the last; code as the prompt has it."""
    left = list(drafts)

    def mind(body):
        code = re.search(r'its "code" is "(\w+)"', body["messages"][1]["content"])[1]
        draft = left.pop(0) if len(left) > 1 else left[0]
        return json.dumps({"code": code, "rubrics": draft})

    return mind


@contextlib.asynccontextmanager
async def model(folder, stub, budget):
    ledger = Ledger(folder / "ledger.jsonl", Prices(1.0, 1.0, 1.0), budget)
    cache = ReplyCache(folder / "replies.sqlite")
    options, timing = Patience(attempts=2), FakeTime().timing()
    async with ChatClient("m", (Endpoint(stub.url),), {}, ledger, options, timing) as client:
        yield client, cache


def made(folder, mind, question=QUESTION, script=(), budget=0.0, **options):
    """(what was made, bodies of the calls)."""

    async def go():
        async with Stub(mind) as stub, model(folder, stub, budget) as (client, cache):
            stub.script = list(script)
            return await make_rubrics(question, client, cache, MakerOptions(**options)), stub.calls

    return asyncio.run(go())


def test_a_clean_draft_is_taken_as_it_is(tmp_path):
    found, calls = made(tmp_path, writer([f" {text}\n" for text in CLEAN]))
    assert [r.text for r in found.question.rubrics] == CLEAN and found.question.entities == {}
    assert found.question.metadata == {"type": "chain"}  # the walk speaks of other placeholders
    assert (found.rounds, found.calls, found.tokens, len(calls)) == (1, 1, 110, 1)
    assert found.cost_usd == pytest.approx(110e-6)
    assert blocks(calls[0]["messages"][1]["content"]) == {
        "QUESTION": QUESTION.question,
        "ANSWER": "Kalkar",
        "EVIDENCE": "Emma | author | Ada Byron\nAda Byron | birthplace | Kalkar",
    }


def test_findings_go_back_to_the_model(tmp_path):
    found, calls = made(tmp_path, writer(LEAKY, CLEAN))
    assert [r.text for r in found.question.rubrics] == CLEAN
    assert (found.rounds, found.calls, found.findings) == (2, 2, ())
    given = blocks(calls[1]["messages"][1]["content"])
    assert given["DRAFT"] == "\n".join(LEAKY)
    assert "rubric 2" in given["FAULTS"] and "names 'Ada Byron'" in given["FAULTS"]
    again, calls = made(tmp_path, writer(LEAKY))
    assert again.question == found.question and calls == [] and again.cost_usd == 0  # from the cache


def test_what_stays_unclean_is_refused_with_its_findings(tmp_path):
    found, calls = made(tmp_path, writer(LEAKY), rounds=2)
    assert found.question is None and found.draft == tuple(LEAKY) and "Ada Byron" in found.findings[-1]
    assert found.rounds == 3 and not found.reason
    assert len(calls) == 2  # the third prompt is the second: the same draft with the same findings


@pytest.mark.parametrize("fault", USELESS)
def test_no_usable_reply_is_unknown_and_not_refused(tmp_path, fault):
    found, _ = made(tmp_path, writer(LEAKY, CLEAN), script=["none", *[fault] * 3])
    assert (found.question, found.findings) == (None, ()) and found.reason


@pytest.mark.parametrize("rubrics", [[], "<E0> is red.", [1], None, {"a": 1}])
def test_a_reply_of_another_shape_is_no_list_of_rubrics(tmp_path, rubrics):
    found, calls = made(tmp_path, writer(rubrics), tries=2)
    assert found.reason == "'rubrics' is no list of texts" and len(calls) == 2


def test_a_budget_that_is_spent_ends_it(tmp_path):
    with pytest.raises(BudgetSpent):
        made(tmp_path, writer(CLEAN), budget=1e-6)


def test_yes_and_no_have_no_rubrics(tmp_path):
    found, calls = made(tmp_path, writer(CLEAN), Question("q", "Is it?", "yes", answer_type="yesno"))
    assert "outcome reward only" in found.findings[0] and calls == []


def test_from_evidence():
    assert from_evidence(QUESTION).question is QUESTION
    assert "no evidence" in from_evidence(Question("q", "?", "a")).findings[0]
    leaky = Question("q", "?", "Kalkar", rubrics=(Rubric("<E0> is Kalkar."),))
    assert "names 'Kalkar'" in from_evidence(leaky).findings[0]
    assert evidence(Question("q", "?", "a")) == ()


@given(st.text(max_size=200))
def test_nothing_that_others_wrote_leaves_its_block(text):
    question = Question("q", text or "?", text or "a")
    prompt = rubric_prompt(question, [text or "e"], [text or "d"], [text or "f"], (40, 300))
    empty = rubric_prompt(Question("q", "?", "a"), ["e"], ["d"], ["f"], (40, 300))
    assert prompt.system == empty.system and prompt.user.endswith(CLOSING.format(prompt.code))
    rest = re.sub(
        r"\[\[begin (\w+) (\w{12})\]\]\n.*?\n\[\[end \1 \2\]\]\n\n?", "", prompt.user, flags=re.DOTALL
    )
    assert rest.strip() == CLOSING.format(prompt.code)
