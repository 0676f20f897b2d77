"""Whose turn it is: each key of each address is a lane, with a limit, a pace, a rest, and a record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from carr_jax.calls.breaker import Breaker
from carr_jax.calls.errors import CallError, NoKeyLeft
from carr_jax.calls.patience import Patience, Timing

log = logging.getLogger(__name__)
T = TypeVar("T")


class Place(Protocol):
    """An address that is called, and the environment variables that hold its keys (none: it needs no key)."""

    url: str
    key_names: tuple[str, ...]


@dataclass(eq=False)
class Lane:
    """One key of one address.  `str` names it without the key."""

    place: Place
    key_name: str
    key: str
    slots: asyncio.Semaphore | contextlib.nullcontext
    load: int = 0  # calls that have it or wait for it
    next_at: float = 0.0  # when the pace allows the next call
    rest_until: float = 0.0  # the server asked to wait
    doubt_until: float = 0.0  # it failed: others first, where there are any
    failures: int = 0  # in a row
    forbidden: int = 0  # in a row
    works: bool = False  # it has answered
    closed: bool = False  # its key is not accepted

    def __str__(self) -> str:
        return f"{self.place.url} ({self.key_name or 'no key'})"

    def answered(self) -> None:
        """It works."""
        self.works, self.failures, self.forbidden, self.doubt_until = True, 0, 0, 0.0


class Lanes:
    """The lanes of some places, whose keys are read from `environment`."""

    def __init__(
        self,
        places: Sequence[Place],
        environment: Mapping[str, str],
        options: Patience,
        timing: Timing,
    ) -> None:
        self._options, self._timing = options, timing
        self.breaker = Breaker(options, timing)
        self._all = asyncio.Semaphore(options.concurrency)
        self._lanes = [
            Lane(place, name, environment.get(name, "").strip(), self._slots())
            for place in places
            for name in place.key_names or ("",)
        ]

    def _slots(self) -> asyncio.Semaphore | contextlib.nullcontext:
        return asyncio.Semaphore(self._options.per_key) if self._options.per_key else contextlib.nullcontext()

    async def repeated(self, attempt: Callable[[Lane], Awaitable[T]]) -> T:
        """What `attempt` returns; what may succeed later is repeated, rather on another lane (TS-10).

        While the breaker is open, failures are no fault of this call and do not count.  Raises CallError, and
        NoKeyLeft.
        """
        failures, failed = 0, None
        while True:
            async with self.one(failed) as lane, self.breaker.passed():
                try:
                    value = await attempt(lane)
                except CallError as error:
                    self.failed(lane, error)
                    last, failed = error, lane
                else:
                    lane.answered()
                    self.breaker.answered()
                    return value
            failures += last.kind != "key" and not self.breaker.is_open
            if not last.retry or failures >= self._options.attempts:
                raise last
            if failures:
                await self._timing.sleep(self.backoff(failures))

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures; full jitter: who failed together does not return together."""
        most = min(self._options.backoff_s * 2 ** (failures - 1), self._options.longest_s)
        return self._timing.draw() * most

    def failed(self, lane: Lane, error: CallError) -> None:
        """What a failure says about its lane."""
        now = self._timing.clock()
        self.breaker.failed(error)
        if error.retry:
            lane.failures += 1
            lane.doubt_until = now + self.backoff(lane.failures)
        if error.retry_after is not None:
            lane.rest_until = max(lane.rest_until, now + error.retry_after)
        if error.kind == "key" and not lane.closed:
            lane.closed = True
            log.warning("%s: not used any more: %s", lane, error)

    @contextlib.asynccontextmanager
    async def one(self, avoid: Lane | None) -> AsyncIterator[Lane]:
        """A lane with room for one more call, rather not `avoid`, which just failed.

        Raises CallError when that takes too long, and NoKeyLeft.
        """
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._options.queue_s or None):
                    while not (lane := await self._enter(held, avoid)):
                        await held.aclose()
            except TimeoutError as error:
                raise CallError("queue", f"no free place in {self._options.queue_s:g} s") from error
            yield lane

    async def _enter(self, held: contextlib.AsyncExitStack, avoid: Lane | None) -> Lane | None:
        """A lane whose place is `held` now; None when it closed, or has to rest, since it was chosen."""
        await held.enter_async_context(self._all)
        lane = await self._rested(avoid)
        lane.load += 1
        held.callback(_leave, lane)
        await held.enter_async_context(lane.slots)
        await self._paced(lane)
        return None if lane.closed or lane.rest_until > self._timing.clock() else lane

    async def _paced(self, lane: Lane) -> None:
        """Until the pace allows one more call: a bucket of one token, so that calls come evenly (TS-09)."""
        if self._options.rate:
            now = self._timing.clock()
            start = max(lane.next_at, now)
            lane.next_at = start + 1 / self._options.rate
            if start > now:
                await self._timing.sleep(start - now)

    async def _rested(self, avoid: Lane | None) -> Lane:
        """The best lane, once it need not rest."""
        while True:
            usable = [lane for lane in self._lanes if not lane.closed]
            if not usable:
                raise NoKeyLeft(f"no key is accepted any more: {', '.join(map(str, self._lanes))}")
            now = self._timing.clock()
            lane = min(
                usable, key=lambda x: (max(x.rest_until - now, 0.0), x is avoid, x.doubt_until > now, x.load)
            )
            if (rest := lane.rest_until - now) <= 0:
                return lane
            if rest > self._options.longest_s:
                raise CallError("busy", f"{lane} asks to wait {rest:.0f} s")
            await self._timing.sleep(rest + self.backoff(1))


def _leave(lane: Lane) -> None:
    lane.load -= 1
