"""Whose turn it is: each key of each endpoint is a lane, with a limit, a rest it asked for, and a record."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.errors import ChatError, NoKeyLeft
from carr_jax.llm.messages import Dialect

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChatOptions:
    """How many calls at a time, and how patient.  Times in seconds.

    Waiting in our own queue has a limit of its own (`queue_s`, 0 for none), so that `request_s` is about the
    endpoint alone.  The n-th repetition comes after a random time up to `backoff_s * 2 ** (n - 1)`, at most
    `longest_s`; an endpoint that asks to wait longer than `longest_s` fails the call.
    """

    concurrency: int = 64  # of all keys together
    per_key: int = 0  # of one key, 0 for no limit of its own
    request_s: float = 120.0
    queue_s: float = 0.0
    attempts: int = 8
    backoff_s: float = 1.0
    longest_s: float = 120.0


@dataclass(frozen=True)
class Timing:
    """Time and chance, which tests replace: seconds that only go up, Unix time, sleep, a draw from [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random


@dataclass(eq=False)
class Place:
    """An endpoint and how it wants to be asked, as far as that was found out."""

    endpoint: Endpoint
    dialect: Dialect = Dialect()


@dataclass(eq=False)
class Lane:
    """One key of one endpoint.  `str` names it without the key."""

    place: Place
    key_name: str
    key: str
    slots: asyncio.Semaphore | contextlib.nullcontext
    load: int = 0  # calls that have it or wait for it
    rest_until: float = 0.0  # the server asked to wait
    doubt_until: float = 0.0  # it failed: others first, where there are any
    failures: int = 0  # in a row
    forbidden: int = 0  # in a row
    works: bool = False  # it has answered
    closed: bool = False  # its key is not accepted

    def __str__(self) -> str:
        return f"{self.place.endpoint.url} ({self.key_name or 'no key'})"

    def answered(self, dialect: Dialect) -> None:
        """It works, and takes this dialect."""
        if dialect != self.place.dialect:
            log.warning("%s: from now on asked with %s", self.place.endpoint.url, dialect)
        self.place.dialect, self.works = dialect, True
        self.failures, self.forbidden, self.doubt_until = 0, 0, 0.0


class Lanes:
    """The lanes of some endpoints, whose keys are read from `environment`."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        environment: Mapping[str, str],
        options: ChatOptions,
        timing: Timing,
    ) -> None:
        self._options, self._timing = options, timing
        self._all = asyncio.Semaphore(options.concurrency)
        self._lanes = [
            Lane(place, name, environment.get(name, "").strip(), self._slots())
            for place in map(Place, endpoints)
            for name in place.endpoint.key_names or ("",)
        ]

    def _slots(self) -> asyncio.Semaphore | contextlib.nullcontext:
        return asyncio.Semaphore(self._options.per_key) if self._options.per_key else contextlib.nullcontext()

    def backoff(self, failures: int) -> float:
        """Seconds to wait after so many failures; full jitter: who failed together does not return together."""
        most = min(self._options.backoff_s * 2 ** (failures - 1), self._options.longest_s)
        return self._timing.draw() * most

    def failed(self, lane: Lane, error: ChatError) -> None:
        """What a failure says about its lane."""
        now = self._timing.clock()
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

        Raises ChatError when that takes too long, and NoKeyLeft.
        """
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._options.queue_s or None):
                    while not (lane := await self._enter(held, avoid)):
                        await held.aclose()
            except TimeoutError as error:
                raise ChatError("queue", f"no free place in {self._options.queue_s:g} s") from error
            yield lane

    async def _enter(self, held: contextlib.AsyncExitStack, avoid: Lane | None) -> Lane | None:
        """A lane whose place is `held` now; None when it closed, or has to rest, since it was chosen."""
        await held.enter_async_context(self._all)
        lane = await self._rested(avoid)
        lane.load += 1
        held.callback(_leave, lane)
        await held.enter_async_context(lane.slots)
        return None if lane.closed or lane.rest_until > self._timing.clock() else lane

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
                raise ChatError("busy", f"{lane} asks to wait {rest:.0f} s")
            await self._timing.sleep(rest + self.backoff(1))


def _leave(lane: Lane) -> None:
    lane.load -= 1
