"""What the web answered, on disk: nobody is asked twice, and a recorded run repeats without a network.

Modes: `use` forgets answers that are too old; `record` keeps every first answer for ever, outages too, until
there is a better one; `replay` asks nobody; `off` remembers nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carr_jax.calls.errors import NotRecorded
from carr_jax.calls.store import Store
from carr_jax.records import InputError

MODES = ("use", "record", "replay", "off")
# Bytes of an answer that is packed, or unpacked, in a thread.  Less is done sooner than a thread has the
# interpreter's lock: it gives that up for each answer, and a busy event loop returns it after milliseconds.
_LONG = 32_768


@dataclass(frozen=True)
class Lifetimes:
    """Seconds after which an answer is too old: of a search, of a page, and of a page that is missing."""

    search: float = 7 * 86_400.0
    page: float = 30 * 86_400.0
    missing: float = 3_600.0


class AnswerCache:
    """A map from the key of a call to its answer, a JSON value, and the kind of that: a field of `Lifetimes`.

    Raises InputError as `Store` does, and in mode `replay` when the file is not there.
    """

    def __init__(
        self,
        path: Path,
        mode: str,
        lifetimes: Lifetimes = Lifetimes(),
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path, self.mode = Path(path), mode
        self._lifetimes, self._now = lifetimes, now
        if mode == "replay" and not self.path.is_file():
            raise InputError(f"{path}: there are no answers to replay; record a run first")
        columns = "key TEXT PRIMARY KEY, kind TEXT NOT NULL, made REAL NOT NULL, answer BLOB NOT NULL"
        self._batch: list[tuple[str, str, float, bytes]] = []  # of what waits to be written
        self._turn = asyncio.Lock()
        self._store = None if mode == "off" else Store(self.path, "answers", columns)

    async def get(self, key: str, call: str) -> Any:
        """The answer to a call, or None.  Raises NotRecorded, naming the call, when there is none to replay."""
        row = self._store.get(key) if self._store is not None else None
        if row is not None and (self.mode != "use" or self._is_fresh(row[1], row[2])):
            return _unpacked(row[3]) if len(row[3]) < _LONG else await asyncio.to_thread(_unpacked, row[3])
        if self.mode == "replay":
            raise NotRecorded(
                f"{self.path} has no answer to {call}, and only replays",
                remedy="give config.search.cache.mode=record to ask for it",
            )
        return None

    async def put(self, key: str, kind: str, answer: Any) -> None:
        """Keep an answer; an outage is kept in mode `record` only, for a run that is repeated.

        Answers that come while others are written are written together.
        """
        if self._store is None or self.mode == "replay" or (kind == "outage" and self.mode != "record"):
            return
        text, made = json.dumps(answer).encode(), self._now()
        packed = _packed(text) if len(text) < _LONG else await asyncio.to_thread(_packed, text)
        batch = self._batch
        batch.append((key, kind, made, packed))
        async with self._turn:
            if batch is self._batch:  # and not written together with the one before
                self._batch = []
                await asyncio.to_thread(self._store.put, *batch)

    def _is_fresh(self, kind: str, made: float) -> bool:
        return self._now() - made < getattr(self._lifetimes, kind, 0.0)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _packed(text: bytes) -> bytes:
    return zlib.compress(text, 1)  # a fiftieth larger than by 6, in two thirds of the time


def _unpacked(packed: bytes) -> Any:
    return json.loads(zlib.decompress(packed))
