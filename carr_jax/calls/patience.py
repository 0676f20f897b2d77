"""How many calls at a time, how fast, and how patient; and the time that all of that is measured in."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """Limits of calls to one service.  Times in seconds.

    Waiting in our own queue has a limit of its own (`queue_s`, 0 for none), so that `request_s` is about the
    service alone.  The n-th repetition comes after a random time up to `backoff_s * 2 ** (n - 1)`, at most
    `longest_s`; a service that asks to wait longer than `longest_s` fails the call.  `rate` is how many calls a
    second one key may make, evenly spaced, 0 for no such limit.  `outage_s` is how long calls wait for a
    service that has failed all calls of late to come back; with 0 each call fails by itself.
    """

    concurrency: int = 64  # of all keys together
    per_key: int = 0  # of one key, 0 for no limit of its own
    request_s: float = 120.0
    queue_s: float = 0.0
    attempts: int = 8
    backoff_s: float = 1.0
    longest_s: float = 120.0
    rate: float = 0.0
    outage_s: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Time and chance, which tests replace: seconds that only go up, Unix time, sleep, a draw from [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random
