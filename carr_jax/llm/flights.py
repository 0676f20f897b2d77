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
    """The questions that are being asked, by the key of their content; for one event loop."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    async def join(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T, bool]:
        """(what `start` gives, whether this caller is the one to whom it is charged).

        `start` is called when nothing with this key is under way.  What it raises is raised to all who wait.
        A caller that is cancelled leaves alone; with the last one the question is given up.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(start()))
        flight.waiting += 1
        try:
            answer = await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                await self._end(key, flight)
        first, flight.paid = not flight.paid, True
        return answer, first

    async def _end(self, key: str, flight: _Flight[T]) -> None:
        """Nobody waits any more: the next who asks begins anew, and what is under way frees its place."""
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.task.done():
            flight.task.cancel()
            await asyncio.wait([flight.task])
