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
# Rows of one statement.  With each statement a thread gives up the interpreter's lock, and a busy event loop
# returns it after milliseconds.
_AT_ONCE = 100


class Store:
    """The table `table` (`columns`, its key first) of the file at `path`.

    Raises InputError, naming the file, when it is none of this program or cannot be written.  Methods may be
    called from any thread; they raise NotWritten when that changes later.
    """

    def __init__(self, path: Path, table: str, columns: str) -> None:
        self.path, self._table = Path(path), table
        self._reading, self._writing = threading.Lock(), threading.Lock()
        with self._named(InputError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._connection()
            self._writer.execute("PRAGMA journal_mode=WAL")
            self._writer.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last values, no others
            self._writer.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
            self._reader = self._connection()  # in this mode reading never waits for who writes

    def _connection(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)

    def get(self, key: str) -> tuple | None:
        """The row of a key; some microseconds of work where the system has that part of the file in memory."""
        with self._reading, self._named(NotWritten):
            return self._reader.execute(f"SELECT * FROM {self._table} WHERE key = ?", (key,)).fetchone()

    def put(self, *rows: tuple) -> None:
        """Keep rows, all or none, instead of those with the same keys; may wait for other processes."""
        with self._writing, self._named(NotWritten), self._writer:
            self._writer.execute("BEGIN IMMEDIATE")
            for some in (rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE)):
                one = f"({', '.join('?' * len(some[0]))})"
                places = ", ".join([one] * len(some))
                values = [value for row in some for value in row]
                self._writer.execute(f"INSERT OR REPLACE INTO {self._table} VALUES {places}", values)

    def __len__(self) -> int:
        with self._reading, self._named(NotWritten):
            return self._reader.execute(f"SELECT COUNT(*) FROM {self._table}").fetchone()[0]

    def close(self) -> None:
        """Waits for a thread that still reads or writes."""
        with self._reading, self._writing:
            self._reader.close()
            self._writer.close()

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
