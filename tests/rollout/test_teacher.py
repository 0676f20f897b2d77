"""A teacher behind a real endpoint plays an episode: his messages become the tokens of a policy."""

import asyncio
import contextlib
import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))
from school import ANNA, ANSWER, CHAT, LYME, Teacher, lesson, question, rollouts
from stub import FakeTime, error

from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.errors import BudgetSpent
from carr_jax.llm.lanes import ChatOptions
from carr_jax.llm.ledger import Ledger, Prices
from carr_jax.records import End
from carr_jax.rollout.teacher import ChatTeacher

FREE = Prices()


@contextlib.asynccontextmanager
async def client_of(stub, tmp_path, prices=FREE, budget=0.0, **options):
    ledger = Ledger(tmp_path / "ledger.jsonl", prices, budget)
    cache = ReplyCache(tmp_path / "replies.sqlite")
    endpoint = Endpoint(stub.url, ("KEY",), "stub")
    options = ChatOptions(**options)
    async with ChatClient("stub", (endpoint,), {"KEY": "k"}, ledger, options, FakeTime().timing()) as client:
        yield client, cache
    cache.close()


def play(tmp_path, word="well", script=(), mind=lesson, limits=(), **options):
    """(trajectory, teacher, what the endpoint was asked)."""

    async def episode():
        async with (
            Teacher(mind) as stub,
            client_of(stub, tmp_path, **options) as (client, cache),
        ):
            stub.script = list(script)
            asked = question("q", word)
            teacher = ChatTeacher(client, cache, CHAT, asked.question)
            played = dataclasses.replace(rollouts(**dict(limits)), engine=teacher)
            return await played.episode(asked, 0, 7), teacher, stub.calls

    return asyncio.run(episode())


def written(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TURNS = (
    "Who was Anna?\n</think>\n\nIch suche 北の海.\n"
    + written("browser.search", '{"query": "Anna"}')
    + "\n"
    + written("browser.search", '{"query": "Lymé \\"Dove\\"", "num": 2}')
    + "<|im_end|>",
    "I read.\n</think>\n\n" + written("browser.open", f'{{"id": "{ANNA}"}}') + "<|im_end|>",
    "I read.\n</think>\n\n" + written("browser.open", f'{{"id": "{LYME}"}}') + "<|im_end|>",
    f"Now I know.\n</think>\n\n{ANSWER}<|im_end|>",
)


def test_his_messages_are_the_tokens_with_mask_one_and_nothing_else_is(tmp_path):
    trajectory, teacher, _ = play(tmp_path)
    assert trajectory.end is End.ANSWERED and trajectory.response == ANSWER and not teacher.refused
    texts = [CHAT.tokenizer.decode(trajectory.ids[t.start : t.end]) for t in trajectory.turns]
    assert tuple(texts) == TURNS
    assert CHAT.tokenizer.decode(trajectory.ids[trajectory.mask == 1]) == "".join(TURNS)
    assert np.isnan(trajectory.logprobs[trajectory.mask == 1]).all(), "nobody knows how likely they were"
    assert "poet" in trajectory.calls[0].result.output and len(trajectory.calls) == 4


def test_what_the_endpoint_hears(tmp_path):
    """Our tools under names that it takes, the question as the policy reads it, and each output to its call."""
    trajectory, _, calls = play(tmp_path)
    assert [t["function"]["name"] for t in calls[0]["tools"]] == [
        "browser_search",
        "browser_open",
        "browser_find",
    ]
    assert calls[0]["messages"] == [{"role": "user", "content": question("q").question + CHAT.suffix}]
    assistant, *outputs = calls[1]["messages"][1:]
    assert assistant["reasoning_content"] == "Who was Anna?\n"
    assert [c["function"]["name"] for c in assistant["tool_calls"]] == ["browser_search"] * 2
    assert [m["tool_call_id"] for m in outputs] == [c["id"] for c in assistant["tool_calls"]]
    assert [m["content"] for m in outputs] == [c.result.output for c in trajectory.calls[:2]]
    for before, after in zip(calls, calls[1:], strict=False):
        assert after["messages"][: len(before["messages"])] == before["messages"], "a provider's prefix cache"


@pytest.mark.parametrize(
    ("word", "says"), [("malformed", "a tool call is not valid JSON"), ("control", "control token <|im_end|>")]
)
def test_what_no_policy_could_have_written_is_refused(tmp_path, word, says):
    trajectory, teacher, calls = play(tmp_path, word)
    assert trajectory.end is End.ENGINE_ERROR and says in teacher.refused and not teacher.failed
    assert not trajectory.mask.any() and len(calls) == 1


def test_who_never_stops_is_stopped(tmp_path):
    trajectory, teacher, calls = play(tmp_path, "endless", limits={"turns": 3})
    assert trajectory.end is End.TURN_BUDGET and not teacher.refused
    assert len(calls) == 4


def test_a_busy_endpoint_is_asked_again_and_a_dead_one_is_nobody_s_fault(tmp_path):
    trajectory, _, _ = play(tmp_path, script=["storm", "http_500", "none", "disconnect"])
    assert trajectory.end is End.ANSWERED
    trajectory, teacher, _ = play(tmp_path / "dead", script=["http_500"] * 20, attempts=3)
    assert trajectory.end is End.ENGINE_ERROR and "HTTP 500" in teacher.failed and not teacher.refused


def test_an_episode_that_is_played_again_asks_nobody(tmp_path):
    first, _, calls = play(tmp_path)
    again, _, none = play(tmp_path)
    assert len(calls) == 4 and not none
    assert np.array_equal(first.ids, again.ids) and np.array_equal(first.mask, again.mask)


def test_a_spent_budget_is_told_apart(tmp_path):
    trajectory, teacher, calls = play(tmp_path, prices=Prices(1.0, 1.0, 1.0), budget=0.005)
    assert trajectory.end is End.ENGINE_ERROR and isinstance(teacher.trouble, BudgetSpent)
    assert 0 < len(calls) < 4 and not teacher.refused


def test_an_endpoint_that_wants_no_earlier_thoughts_gets_none(tmp_path):
    class Strict(Teacher):
        async def _answer(self, request, body, key):
            if any("reasoning_content" in message for message in body["messages"]):
                return error(400, "Unrecognized field: messages[1].reasoning_content")
            return await super()._answer(request, body, key)

    async def episode():
        async with Strict() as stub, client_of(stub, tmp_path) as (client, cache):
            asked = question("q")
            teacher = ChatTeacher(client, cache, CHAT, asked.question)
            played = dataclasses.replace(rollouts(), engine=teacher)
            return await played.episode(asked, 0, 7)

    assert asyncio.run(episode()).response == ANSWER
