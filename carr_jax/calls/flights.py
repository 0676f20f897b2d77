"""Questions on their way: who asks the same meanwhile gets the same answer, and it is paid once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0
    paid: bool = False  # somebody has the answer, and with it what it took


class Flights(Generic[T]):
    """The questions that are being asked, by the key of their content; for one event loop.

    A caller that is cancelled leaves alone.  With the last one the question is given up, unless it `lands`
    always: then its answer is for whoever asks later, from where `start` has put it.
    """

    def __init__(self, *, lands: bool = False) -> None:
        self._lands = lands
        self._flights: dict[str, _Flight[T]] = {}

    async def join(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """(what `start` gives, whether this caller is the one to whom it is charged).

        `start` is called when nothing with this key is under way.  What it raises is raised to all who wait.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(start()))
            flight.task.add_done_callback(lambda _, own=flight: self._ended(key, own))
        flight.waiting += 1
        try:
            answer = await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not self._lands:
                await self._give_up(key, flight)
        first, flight.paid = not flight.paid, True
        return answer, first

    def _ended(self, key: str, flight: _Flight[T]) -> None:
        """The next who asks begins anew."""
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.task.cancelled():
            flight.task.exception()  # looked at, though everybody may have left

    async def _give_up(self, key: str, flight: _Flight[T]) -> None:
        """Nobody waits any more: what is under way frees its place."""
        if not flight.task.done():
            if self._flights.get(key) is flight:
                del self._flights[key]
            flight.task.cancel()
            await asyncio.wait([flight.task])

    async def close(self) -> None:
        """Give up all that is under way."""
        for key, flight in list(self._flights.items()):
            await self._give_up(key, flight)
