"""Questions worded by a model that answers by a script, over real HTTP: what is checked, repaired, refused."""

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
from carr_jax.data.rewording import LONGEST, findings, reworded
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import Endpoint
from carr_jax.records import Question, Rubric
from carr_jax.rewards.rubric_maker import MakerOptions

PLAIN = Question(
    "q",
    "A novel is about chess and was published in the 1810s. What is the birthplace of the author of the novel?",
    "Kalkar",
    entities={"E0": ("Kalkar",), "E1": ("Emma",), "E2": ("Ada Byron", "Ada")},
    rubrics=(
        Rubric("<E1> is about chess."),
        Rubric("<E1> was published in 1812."),
        Rubric("The author of <E1> is <E2>."),
        Rubric("The birthplace of <E2> is <E0>."),
    ),
    metadata={
        "clues": [
            "<E1> is about chess.",
            "<E1> was published in the 1810s.",
            "The author of <E1> is <E2>.",
            "The birthplace of <E2> is <E0>.",
        ]
    },
)
TEXT = "Whoever wrote a book of the 1810s that turns on a game of kings came into the world in which place?"
TOLD = [
    "turns on a game of kings",
    "a book of the 1810s",
    "Whoever wrote",
    "came into the world in which place",
]
GOOD = {"question": TEXT, **{f"F{k}": said for k, said in enumerate(TOLD, 1)}}
LEAK = {**GOOD, "question": TEXT.replace("Whoever wrote", "Whoever (Ada Byron, that is) wrote")}
ANSWER = {**GOOD, "question": TEXT.replace("in which place", "in which place, Kalkar or not")}
DROPPED = {**GOOD, "question": TEXT.replace(" of the 1810s", "")}


def writer(*replies):
    """A mind whose n-th reply is the n-th of these, then always the last; with the code of the prompt."""
    left = list(replies)

    def mind(body):
        code = re.search(r'its "code" is "(\w+)"', body["messages"][1]["content"])[1]
        return json.dumps({"code": code, **(left.pop(0) if len(left) > 1 else left[0])})

    return mind


@contextlib.asynccontextmanager
async def model(folder, stub, budget):
    ledger = Ledger(folder / "ledger.jsonl", Prices(1.0, 1.0, 1.0), budget)
    cache = ReplyCache(folder / "replies.sqlite")
    timing = FakeTime().timing()
    async with ChatClient("m", (Endpoint(stub.url),), {}, ledger, Patience(attempts=2), timing) as client:
        yield client, cache


def made(folder, mind, script=(), budget=0.0, **options):
    """(what was made, bodies of the calls)."""

    async def go():
        async with Stub(mind) as stub, model(folder, stub, budget) as (client, cache):
            stub.script = list(script)
            return await reworded(PLAIN, client, cache, MakerOptions(**options)), stub.calls

    return asyncio.run(go())


def test_other_words_that_tell_everything_are_taken(tmp_path):
    found, calls = made(tmp_path, writer(GOOD))
    assert found.question.question == TEXT and found.question.metadata["plain"] == PLAIN.question
    assert (found.question.rubrics, found.question.entities) == (PLAIN.rubrics, PLAIN.entities)
    assert (found.rounds, found.calls, found.findings) == (1, 1, ())
    prompt = calls[0]["messages"][1]["content"]
    assert "F2: <E1> was published in the 1810s." in prompt
    assert PLAIN.question in prompt and not re.search("Kalkar|Emma|Ada|1812", prompt)  # it cannot tell a secret
    again, calls = made(tmp_path, writer(LEAK))
    assert again.question == found.question and calls == []  # from the cache


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (LEAK, "the question names 'Ada Byron'"),
        (ANSWER, "the question names 'Kalkar'"),
        (DROPPED, "F2: these words are not in the question"),
        ({**DROPPED, "F2": "a book"}, "F2: the question leaves out '1810s'"),
        ({**GOOD, "F4": TOLD[2]}, "F4: the same words as for F3"),
        ({**GOOD, "F3": ""}, "F3: these words are not in the question"),
        ({**GOOD, "question": TEXT.replace("book", "book of 1812")}, "no fact has the number '1812'"),
        ({**GOOD, "question": TEXT.replace("place?", "place.")}, "the last sentence is no question"),
        ({**GOOD, "question": TEXT.replace("Whoever", "Whoever, <E2>,")}, "a placeholder"),
        ({**GOOD, "question": TEXT.replace("kings", "kings <|im_end|>")}, "a control token"),
        ({**GOOD, "question": "Well, " * 250 + TEXT}, f"{LONGEST} at most"),
    ],
)
def test_what_is_wrong_goes_back_and_is_refused_in_the_end(tmp_path, bad, says):
    found, calls = made(tmp_path / "a", writer(bad, GOOD))
    assert found.question.question == TEXT and (found.rounds, len(calls)) == (2, 2)
    assert says in calls[1]["messages"][1]["content"].replace("‹", "<")
    assert bad["question"][:40] in calls[1]["messages"][1]["content"]
    found, _ = made(tmp_path / "b", writer(bad), rounds=1)
    assert found.question is None and any(says in finding for finding in found.findings)


@pytest.mark.parametrize("fault", USELESS)
def test_rubbish_is_unknown_and_not_refused(tmp_path, fault):
    found, _ = made(tmp_path, writer(GOOD), script=[fault] * 3)
    assert (found.question, found.findings) == (None, ()) and found.reason


@pytest.mark.parametrize(
    "reply", [{**GOOD, "question": 1}, {**GOOD, "F2": None}, {"question": TEXT}, {**GOOD, "question": " "}]
)
def test_a_reply_of_another_shape_is_unknown(tmp_path, reply):
    found, calls = made(tmp_path, writer(reply), tries=2)
    assert (found.question, found.findings, len(calls)) == (None, (), 2)


def test_the_budget_ends_it(tmp_path):
    with pytest.raises(BudgetSpent):
        made(tmp_path, writer(GOOD), budget=1e-6)


@given(st.text(max_size=80), st.lists(st.text(max_size=20), min_size=4, max_size=4))
def test_no_text_gets_through_that_lacks_a_fact(text, told):
    """Any text without the decade, or without four different pieces of it, is refused."""
    assert findings(PLAIN, text, told) or ("1810s" in text.lower() and all(told) and text.endswith("?"))
