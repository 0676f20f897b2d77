"""Asking until there is an answer: what is kept, what is asked again, what is counted."""

import asyncio
import contextlib

import pytest
from stub import ODD, USELESS, FakeTime, Stub

from carr_jax.calls.errors import NotRecorded
from carr_jax.calls.ledger import Ledger, Prices
from carr_jax.calls.patience import Patience
from carr_jax.llm.ask import AGAIN, ask
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.messages import Request
from carr_jax.llm.replies import answer_text, read_object

REQUEST = Request((("system", "s"), ("user", "u")), 50, seed=1, schema={"type": "object"})
MIND = '{"code": "7f", "right": true, "name": null}'


def read(reply):
    return read_object(answer_text(reply), ("right", "name"), {"code": "7f"})


VALUE = {"right": True, "name": None}


@contextlib.asynccontextmanager
async def world(tmp_path, replay=False):
    """(stub, function that asks)."""
    cache = ReplyCache(tmp_path / "replies.sqlite", replay)
    ledger = Ledger(tmp_path / "ledger.jsonl", Prices(1.0, 1.0, 1.0))
    options, timing = Patience(attempts=2), FakeTime().timing()
    async with (
        Stub(lambda body: MIND) as stub,
        ChatClient("m", (Endpoint(stub.url),), {}, ledger, options, timing) as client,
    ):

        async def go(request=REQUEST, tries=3, read=read):
            return await ask(client, cache, request, read, purpose="p", tries=tries)

        yield stub, go


def run(test):
    asyncio.run(test())


@pytest.mark.parametrize("odd", ODD)
def test_what_is_odd_is_understood(tmp_path, odd):
    async def test():
        async with world(tmp_path) as (stub, go):
            stub.script = [odd]
            asked = await go()
            assert asked.value == VALUE and asked.reason == ""
            assert (asked.calls, asked.invalid, asked.tokens, asked.cached) == (1, 0, 110, False)
            assert asked.from_reasoning == (odd == "reasoning")

    run(test)


@pytest.mark.parametrize("useless", USELESS)
def test_what_is_useless_is_asked_again_in_other_words_and_never_kept(tmp_path, useless):
    async def test():
        async with world(tmp_path) as (stub, go):
            stub.script = [useless] * 3
            asked = await go()
            assert asked.value is None and asked.reason
            assert (asked.calls, asked.invalid, asked.tokens) == (3, 3, 330)
            assert len({body["seed"] for body in stub.calls}) == 3
            assert [AGAIN in body["messages"][-1]["content"] for body in stub.calls] == [False, True, True]
            stub.script = [useless]
            asked = await go()  # had it been kept, nobody would be asked
            assert asked.value == VALUE and (asked.calls, asked.invalid) == (2, 1)
            again = await go()
            assert again.value == VALUE and again.cached and len(stub.calls) == 5
            assert (again.calls, again.cost_usd, again.latency_s, again.tokens) == (0, 0.0, 0.0, 0)

    run(test)


def test_a_call_that_fails_is_not_counted_as_a_useless_reply(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            stub.script = ["prose", "http_500", "http_500"]
            asked = await go()
            assert asked.value is None and asked.reason.startswith("server:")
            assert (asked.calls, asked.invalid, len(stub.calls)) == (1, 1, 3)

    run(test)


def test_another_seed_is_another_entry(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            await go(REQUEST)
            await go(Request(**vars(REQUEST) | {"seed": 2}))
            assert len(stub.calls) == 2

    run(test)


def test_replay_asks_nobody(tmp_path):
    async def test():
        async with world(tmp_path) as (_, go):
            first = await go()
        async with world(tmp_path, replay=True) as (stub, go):
            again = await go()
            assert again.value == first.value and again.raw == first.raw
            with pytest.raises(NotRecorded):
                await go(Request(**vars(REQUEST) | {"seed": 2}))
            with pytest.raises(NotRecorded, match="cannot be used"):
                await go(read=lambda reply: read_object(reply.text, ("other",)))
            assert stub.calls == []

    run(test)


def test_a_record_that_is_no_longer_understood_is_made_again(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            await go()
            asked = await go(read=lambda reply: read_object(reply.text, ("other",)))
            assert asked.value is None and len(stub.calls) == 1 + 3

    run(test)
