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


@pytest.mark.parametrize("script", [[], ["prose"], ["http_500"]])
def test_who_asks_the_same_at_the_same_time_shares_the_call_and_one_pays(tmp_path, script):
    async def test():
        async with world(tmp_path) as (stub, go):
            stub.script, stub.pause_s = list(script), 0.02
            asked = await asyncio.gather(*(go() for _ in range(8)))
            assert [a.value for a in asked] == [VALUE] * 8
            assert len(stub.calls) == 1 + len(script)
            paid = 2 if script == ["prose"] else 1
            assert [a.calls for a in asked] == [paid, 0, 0, 0, 0, 0, 0, 0]
            assert [a.cached for a in asked] == [False] + [True] * 7
            assert sum(a.tokens for a in asked) == 110 * paid
            assert sum(a.cost_usd for a in asked) == pytest.approx(110e-6 * paid) and asked[7].latency_s == 0.0
            assert asked[0].raw == asked[7].raw

    run(test)


def test_draws_are_not_shared(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            draws = [Request(**vars(REQUEST) | {"seed": seed}) for seed in (0, 1, 2)]
            await asyncio.gather(*(go(draw) for draw in draws * 4))
            assert sorted(body["seed"] for body in stub.calls) == [0, 1, 2]

    run(test)


def test_a_failure_is_that_of_all_who_waited_and_of_nobody_later(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            stub.script = ["http_500"] * 2 + ["prose"] * 3
            asked = await asyncio.gather(*(go() for _ in range(3)))
            assert {(a.value, a.cached, a.calls) for a in asked} == {(None, False, 0)}
            assert all(a.reason.startswith("server:") for a in asked) and len(stub.calls) == 2
            asked = await asyncio.gather(*(go() for _ in range(3)))
            assert [(a.value, a.calls, a.invalid, a.tokens) for a in asked] == [
                (None, 3, 3, 330), (None, 0, 0, 0), (None, 0, 0, 0)
            ]  # fmt: skip
            assert (await go()).value == VALUE

    run(test)


def test_who_gives_up_waiting_does_not_take_the_call_from_the_others(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            stub.pause_s = 0.1
            first, second = asyncio.create_task(go()), asyncio.create_task(go())
            while not stub.calls:
                await asyncio.sleep(0.005)
            first.cancel()
            asked = await second
            assert (asked.value, asked.calls, asked.cached, len(stub.calls)) == (VALUE, 1, False, 1)

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


def test_a_reply_without_the_temperature_is_kept_under_what_was_asked_and_says_so(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            stub.refuses = {"temperature": "'temperature' is not supported"}
            first = await go()
            assert first.value == VALUE and len(stub.calls) == 2
        async with world(tmp_path, replay=True) as (stub, go):
            assert (await go()).value == VALUE and stub.calls == []
        kept = ReplyCache(tmp_path / "replies.sqlite").get(REQUEST.key("m"))
        assert kept.dialect == "json_schema, max_tokens, no temperature"

    run(test)


def test_a_record_that_is_no_longer_understood_is_made_again(tmp_path):
    async def test():
        async with world(tmp_path) as (stub, go):
            await go()
            asked = await go(read=lambda reply: read_object(reply.text, ("other",)))
            assert asked.value is None and len(stub.calls) == 1 + 3

    run(test)
