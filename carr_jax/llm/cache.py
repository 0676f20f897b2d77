"""Replies on disk by the content of what was asked, shared by processes; a run that is repeated asks nobody.

One SQLite file in write-ahead mode: a kill at any instant leaves a whole database, several processes may read
and write, and values are JSON.  It must lie on a disk of this machine, or on a file system with working locks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from carr_jax.llm.errors import NotRecorded, NotWritten
from carr_jax.llm.messages import Reply
from carr_jax.records import InputError

_WAIT_S = 60.0  # for another process that writes


class ReplyCache:
    """A map from `Request.key` to the reply that could be used.  With `replay` nothing new is ever asked.

    Raises InputError, naming the file, when it is no cache or cannot be written, and with `replay` when it is
    not there.  Methods may be called from any thread; they raise NotWritten when that changes later.
    """

    def __init__(self, path: Path, replay: bool = False) -> None:
        self.path, self.replay = Path(path), replay
        self._lock = threading.Lock()
        if replay and not self.path.is_file():
            raise InputError(f"{path}: there are no replies to replay; record a run first")
        with self._named(InputError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last replies, no others
            self._file.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)")

    def get(self, key: str) -> Reply | None:
        """The reply to a request, marked as cached.  Raises NotRecorded when there is none to replay."""
        with self._lock, self._named(NotWritten):
            row = self._file.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        if row is not None:
            reply = Reply(**json.loads(row[0]))
            calls = tuple(map(tuple, reply.calls))  # JSON knows lists only
            return dataclasses.replace(reply, calls=calls, cached=True, cost_usd=0.0, latency_s=0.0)
        if self.replay:
            raise NotRecorded(f"{self.path} has no reply to a request of this run, and only replays")
        return None

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply.  Only what could be used belongs here: what could not is asked again."""
        text = json.dumps(dataclasses.asdict(reply))
        with self._lock, self._named(NotWritten):
            self._file.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, text))

    def __len__(self) -> int:
        with self._lock, self._named(NotWritten):
            return self._file.execute("SELECT COUNT(*) FROM replies").fetchone()[0]

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _named(self, kind: type[Exception]) -> Iterator[None]:
        """What goes wrong on disk is an error of this kind that names the file."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise kind(
                f"{self.path}: cannot be used as a reply cache ({error}); it must be a file of this program "
                "on a disk with room and working locks"
            ) from error
