"""An event loop whose clock jumps: when nothing is ready, it is at once the time of the next timer."""

from __future__ import annotations

import asyncio
import selectors


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing but the clock."""

    loop: FakeTimeLoop

    def select(self, timeout: float | None = None):
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("all tasks wait for ever")
            self.loop.now += max(timeout, 0)
        return ready


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """`asyncio.Runner(loop_factory=FakeTimeLoop)`; no threads, no sockets."""

    def __init__(self) -> None:
        selector = _Jumping()
        super().__init__(selector)
        selector.loop, self.now = self, 0.0

    def time(self) -> float:
        return self.now
