"""Processes that read documents: off the event loop, with limits on time and memory, and with nothing of ours.

A document that takes too long is given up; one that kills its worker fails by itself.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import multiprocessing
import os
import resource
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import FrameType

from carr_jax.records import InputError
from carr_jax.search.extract import NoText, Text, extract

_LIBRARIES = ("trafilatura", "pypdf")
_MEMORY = 4 << 30  # bytes of address space of a worker
_TASKS = 500  # documents after which a worker is replaced: libraries leak
_GRACE_S = 30.0  # to start; then a worker that does not even hear its alarm is killed


def missing_libraries() -> list[str]:
    """Those of the extra `web` that are not installed."""
    return [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]


class Workers:
    """`count` processes; open as a context.  Raises InputError when a library is not installed."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds
        self._places = asyncio.Semaphore(count)  # so that no time is counted in a queue
        if names := missing_libraries():
            raise InputError(f"reading web pages needs {' and '.join(names)}: pip install 'carr_jax[web]'")
        self._pool = self._fresh()

    def _fresh(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # a fork would copy threads of jax in the middle of work
        return ProcessPoolExecutor(self._count, context, _prepare, max_tasks_per_child=_TASKS)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._kill()

    async def extract(self, body: bytes, content_type: str, url: str) -> Text:
        """`extract` in a worker.  Raises NoText, also for a document that takes too long."""
        async with self._places:
            for _ in range(2):  # another document may have killed the worker
                pool = self._pool
                work = asyncio.wrap_future(pool.submit(_timed, self._seconds, body, content_type, url))
                try:
                    async with asyncio.timeout(self._seconds + _GRACE_S):
                        return await work
                except TimeoutError:
                    self._replace(pool)
                    break
                except BrokenProcessPool:
                    self._replace(pool)
            raise NoText("extraction")

    def _replace(self, pool: ProcessPoolExecutor) -> None:
        if pool is self._pool:
            self._kill()
            self._pool = self._fresh()

    def _kill(self) -> None:
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare() -> None:
    """A worker needs no key and little memory; Ctrl-C is for its parent."""
    os.environ.clear()
    logging.disable()
    for name in _LIBRARIES:  # now, so that no document's time is spent on it
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _ring)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _TookTooLong(BaseException):
    """So that no library catches it."""


def _ring(signum: int, frame: FrameType | None) -> None:
    raise _TookTooLong


def _timed(seconds: float, body: bytes, content_type: str, url: str) -> Text:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return extract(body, content_type, url)
    except (_TookTooLong, MemoryError, RecursionError):
        raise NoText("extraction") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
