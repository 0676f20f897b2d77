"""The breaker and the pace, on a clock of ours."""

import asyncio

import pytest

from carr_jax.calls.breaker import Breaker
from carr_jax.calls.errors import CallError
from carr_jax.calls.lanes import Lanes
from carr_jax.calls.patience import Patience, Timing

DOWN = CallError("server", "HTTP 500", retry=True)


class FakeTime:
    def __init__(self):
        self.t = 0.0

    async def sleep(self, seconds):
        self.t += seconds
        await asyncio.sleep(0)

    def timing(self):
        return Timing(clock=lambda: self.t, sleep=self.sleep, draw=lambda: 0.5)


async def passes(breaker):
    async with breaker.passed():
        pass


def test_it_opens_after_failures_alone_and_one_answer_closes_it():
    breaker = Breaker(Patience(outage_s=60.0), FakeTime().timing())
    for _ in range(7):
        breaker.failed(DOWN)
    breaker.answered()
    for _ in range(7):
        breaker.failed(DOWN)
    assert not breaker.is_open
    breaker.failed(DOWN)
    assert breaker.is_open
    breaker.failed(CallError("refused", "HTTP 400"))  # it is there, and says no
    assert not breaker.is_open


def test_a_storm_and_a_refused_key_are_no_outage_and_without_patience_there_is_none():
    for error in (CallError("busy", "", retry=True), CallError("key", "", retry=True)):
        breaker = Breaker(Patience(outage_s=60.0), FakeTime().timing())
        for _ in range(50):
            breaker.failed(error)
        assert not breaker.is_open
    breaker = Breaker(Patience(), FakeTime().timing())
    for _ in range(50):
        breaker.failed(DOWN)
    assert not breaker.is_open


def test_an_outage_that_lasts_is_an_error():
    clock = FakeTime()
    breaker = Breaker(Patience(outage_s=60.0, backoff_s=1e9, longest_s=1e9), clock.timing())
    for _ in range(8):
        breaker.failed(DOWN)
    with pytest.raises(CallError, match="outage"):
        asyncio.run(passes(breaker))
    assert clock.t >= 60


def test_one_call_at_a_time_goes_to_see():
    """Twenty calls find a service that is down for 30 seconds: few reach it while it is down, none fails."""
    clock, tried = FakeTime(), []

    class Place:
        url, key_names = "http://a.test", ()

    async def attempt(lane):
        tried.append(clock.t)
        await asyncio.sleep(0)
        if clock.t < 30:
            raise DOWN
        return "done"

    async def all_of_them():
        lanes = Lanes([Place()], {}, Patience(outage_s=600.0, attempts=3), clock.timing())
        return await asyncio.gather(*(lanes.repeated(attempt) for _ in range(20)))

    assert asyncio.run(all_of_them()) == ["done"] * 20
    assert len([t for t in tried if t < 30]) <= 20 + 12
