"""Values on disk by the content of what was asked, shared by processes.

One SQLite file in write-ahead mode: a kill at any instant leaves a whole database, and several processes may
read and write.  It must lie on a disk of this machine, or on a file system with working locks.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from carr_jax.calls.errors import NotWritten
from carr_jax.records import InputError

_WAIT_S = 60.0  # for another process that writes


class Store:
    """The table `table` (`columns`, its key first) of the file at `path`.

    Raises InputError, naming the file, when it is none of this program or cannot be written.  Methods may be
    called from any thread; they raise NotWritten when that changes later.
    """

    def __init__(self, path: Path, table: str, columns: str) -> None:
        self.path, self._table = Path(path), table
        self._lock = threading.Lock()
        with self._named(InputError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last values, no others
            self._file.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")

    def get(self, key: str) -> tuple | None:
        """The row of a key."""
        with self._lock, self._named(NotWritten):
            return self._file.execute(f"SELECT * FROM {self._table} WHERE key = ?", (key,)).fetchone()

    def put(self, *row: object) -> None:
        """Keep a row, instead of one with the same key."""
        places = ", ".join("?" * len(row))
        with self._lock, self._named(NotWritten):
            self._file.execute(f"INSERT OR REPLACE INTO {self._table} VALUES ({places})", row)

    def __len__(self) -> int:
        with self._lock, self._named(NotWritten):
            return self._file.execute(f"SELECT COUNT(*) FROM {self._table}").fetchone()[0]

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _named(self, kind: type[Exception]) -> Iterator[None]:
        """What goes wrong on disk is an error of this kind that names the file."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise kind(
                f"{self.path}: cannot be used as a cache ({error}); it must be a file of this program "
                "on a disk with room and working locks"
            ) from error
