"""Other names of hidden entities by a model that answers by a script, over real HTTP; what is left out."""

import asyncio
import json
import re

import pytest
from test_rubric_maker import USELESS, Stub, blocks, model

from carr_jax.records import Question
from carr_jax.rewards.entities import entity_match
from carr_jax.rewards.variants import make_variants, usable_variants
from carr_jax.stored import question_from_json, to_json

QUESTION = Question(
    "q",
    "Which state is the author of Emma from, who lived in Bath?",
    "United States",
    entities={"E0": ("United States", "USA"), "E1": ("Ada Byron",), "E2": ("Bath",)},
)
SAID = {
    "E0": ["United States of America", "us", "the USA", "America", "Ada Byron"],
    "E1": ["A. Byron", "a.  byron", "Byron, Ada", "America", "Emma"],
}
KEPT = {"E0": ["United States of America"], "E1": ["A. Byron", "Byron, Ada"]}


def mind(said):
    def reply(body):
        code = re.search(r'its "code" is "(\w+)"', body["messages"][1]["content"])[1]
        return json.dumps({"code": code, **said})

    return reply


def made(folder, said, question=QUESTION, script=()):
    async def go():
        async with Stub(mind(said)) as stub, model(folder, stub, 0.0) as (client, cache):
            stub.script = list(script)
            return await make_variants(question, client, cache), stub.calls

    return asyncio.run(go())


def test_variants_stand_beside_the_names_and_the_robust_match_finds_them(tmp_path):
    """What the question names (Bath) is not asked for; `America` is said of two, `us` is a word."""
    found, calls = made(tmp_path, SAID)
    assert found.question.metadata == {"variants": KEPT} and found.question.entities == QUESTION.entities
    assert blocks(calls[0]["messages"][1]["content"])["ENTITIES"] == (
        "<E0> | United States | USA\n<E1> | Ada Byron"
    )
    assert question_from_json(json.loads(json.dumps(to_json(found.question)))).metadata == {"variants": KEPT}
    thoughts = ("so byron, ada wrote it", "let us see: america")
    assert entity_match(found.question, thoughts, robust=True) == 0.5
    assert entity_match(found.question, thoughts) == entity_match(QUESTION, thoughts, robust=True) == 0.0
    again, calls = made(tmp_path, SAID)
    assert again.question == found.question and calls == [] and again.cost_usd == 0  # from the cache


def test_nothing_hidden_asks_nobody(tmp_path):
    open_question = Question("q", "Is Bath a city?", "yes", answer_type="yesno", entities={"E0": ("Bath",)})
    found, calls = made(tmp_path, SAID, open_question)
    assert found.question == open_question and calls == []


@pytest.mark.parametrize(
    "said", [{"E0": []}, {"E0": "x", "E1": []}, {"E0": [1], "E1": []}, {"E0": None, "E1": []}]
)
def test_a_reply_of_another_shape_is_unknown(tmp_path, said):
    found, _ = made(tmp_path, said)
    assert found.question is None and not found.findings and "E" in found.reason


@pytest.mark.parametrize("fault", USELESS)
def test_no_usable_reply_is_unknown(tmp_path, fault):
    found, _ = made(tmp_path, SAID, script=[fault] * 3)
    assert found.question is None and not found.findings and found.reason


def test_at_most_ten_and_no_essay():
    said = {"E0": [f"name {i}" for i in range(30)], "E1": ["x" * 81, ""]}
    assert usable_variants(QUESTION, said) == {"E0": [f"name {i}" for i in range(10)]}
