"""Whether a service is there: after failures alone its calls wait, and one at a time goes to see.

An outage so pauses whoever calls, instead of failing everybody; only one that lasts too long is an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from carr_jax.calls.errors import CallError
from carr_jax.calls.patience import Patience, Timing

_OPENS_AFTER = 8  # failures in a row, of all calls together
_LOOK_S = 0.5  # seconds between two looks whether the service is back
_NO_OUTAGE = ("busy", "key")  # failures that a service which is there answers with

log = logging.getLogger(__name__)


class Breaker:
    """Closed, calls pass.  Open, one call at a time passes, each some seconds after the one before failed.

    With `outage_s` 0 it never opens.
    """

    def __init__(self, options: Patience, timing: Timing) -> None:
        self._options, self._timing = options, timing
        self._failures = 0
        self._open_since: float | None = None
        self._probe_at = self._pause = 0.0
        self._probing = False

    @property
    def is_open(self) -> bool:
        return self._open_since is not None

    @contextlib.asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Waits until this call may pass.  Raises CallError "outage" after `outage_s`."""
        probes = await self._wait()
        try:
            yield
        finally:
            if probes:
                self._probing = False

    async def _wait(self) -> bool:
        """Whether this call goes to see."""
        while self.is_open:
            now = self._timing.clock()
            if not self._probing and now >= self._probe_at:
                self._probing = True
                return True
            if now - self._open_since >= self._options.outage_s:
                raise CallError("outage", f"nothing but failures for {now - self._open_since:.0f} s")
            await self._timing.sleep(_LOOK_S * (1 + self._timing.draw()))
        return False

    def answered(self) -> None:
        """The service is there."""
        if self.is_open:
            log.warning("a service is back after %.0f s", self._timing.clock() - self._open_since)
        self._failures, self._open_since, self._pause = 0, None, 0.0

    def failed(self, error: CallError) -> None:
        """A call failed; a refusal that no repetition changes is an answer, too."""
        if not error.retry:
            self.answered()
            return
        if error.kind in _NO_OUTAGE or not self._options.outage_s:
            return
        self._failures += 1
        if self._failures < _OPENS_AFTER:
            return
        now = self._timing.clock()
        if not self.is_open:
            log.warning("a service has failed %d times in a row, its calls wait: %s", self._failures, error)
            self._open_since = now
        self._pause = min(max(2 * self._pause, self._options.backoff_s), self._options.longest_s / 4)
        self._probe_at = now + self._pause
