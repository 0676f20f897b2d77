"""The sessions of a tool server: bounded in number, forgotten when nobody uses them, and alive after a restart.

Each call that changes where a session is writes that to SQLite before it is answered: the addresses of the
latest results, and of the page that is open.  The texts are fetched again when they are needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from carr_jax.agent.tools import SearchSession, Tools
from carr_jax.records import InputError, ToolCall, ToolResult
from carr_jax.search.browser import NO_RESULTS
from carr_jax.serving import Refused
from carr_jax.stored import to_json, tool_result_from_json

_TABLE = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, question TEXT NOT NULL, used REAL NOT NULL, search TEXT, page TEXT
) WITHOUT ROWID
"""
_GONE = "CREATE TABLE IF NOT EXISTS gone (id TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID"
_REMEMBERED_GONE = 100  # times the time to live that an expired name is known as such


class Held:
    """A session in memory and how it is found again: what its last search and its last open showed."""

    def __init__(self, session: SearchSession, write: Callable[[str, str], None]) -> None:
        self.session, self._write = session, write
        self.lock = asyncio.Lock()

    def remember(self, *results: ToolResult) -> None:
        """Writes where the session is after these results; those that change nothing are passed over."""
        for result in results:
            if (place := _place(result)) is not None:
                self._write(place, json.dumps(to_json(_bare(result))))


def _place(result: ToolResult) -> str | None:
    """Which part of a session's state a result is: "search", "page" or none."""
    kind = result.seen[0].kind if result.seen else None
    if kind == "snippet" or result.output == NO_RESULTS:
        return "search"
    return "page" if kind == "page" else None


def bare(results: list[ToolResult]) -> list[ToolResult]:
    """The last search and the last open of these, without texts: enough for `restore`."""
    last = {place: _bare(result) for result in results if (place := _place(result))}
    return list(last.values())


def _bare(result: ToolResult) -> ToolResult:
    output = NO_RESULTS if result.output == NO_RESULTS else ""
    return ToolResult(output, tuple(replace(s, title="", text="") for s in result.seen))


class Sessions:
    """Sessions by name.  `file` keeps them over restarts; `seconds` is how long one lives that nobody uses.

    At most `most` are kept, `in_memory` of them with what they have open.  Raises InputError for a file that is
    no such database.
    """

    def __init__(self, file: Path, seconds: float = 3600.0, most: int = 100_000, in_memory: int = 4096) -> None:
        self._seconds, self._most, self._in_memory = seconds, most, in_memory
        self._held: OrderedDict[str, Held] = OrderedDict()
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._rows = sqlite3.connect(file, isolation_level=None)
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.execute("PRAGMA synchronous=NORMAL")
            self._rows.execute(_TABLE)
            self._rows.execute(_GONE)
            self._rows.execute("CREATE INDEX IF NOT EXISTS by_use ON sessions (used)")
            self._rows.execute("CREATE INDEX IF NOT EXISTS by_end ON gone (since)")  # looked at in every call
        except sqlite3.Error as error:
            raise InputError(f"{file}: no file of sessions ({error}); move it away") from None

    def __len__(self) -> int:
        return self._rows.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()

    @contextlib.asynccontextmanager
    async def entered(self, id: str, question: str, tools: Tools) -> AsyncIterator[Held | None]:
        """The session of that name for one call, a new one for a new name; None when it has expired."""
        self._expire()
        if self._rows.execute("SELECT 1 FROM gone WHERE id = ?", (id,)).fetchone():
            yield None
            return
        held = self._held.get(id) or self._found(id, tools) or self._new(id, question, tools)
        async with self._used(id, held):
            yield held

    @contextlib.asynccontextmanager
    async def renewed(self, id: str, question: str, tools: Tools) -> AsyncIterator[Held]:
        """A fresh session under that name, whatever was there."""
        self._expire()
        self.close(id)
        async with self._used(id, held := self._new(id, question, tools)):
            yield held

    def close(self, id: str) -> None:
        """Forgets a session; nothing happens when there is none."""
        self._held.pop(id, None)
        self._rows.execute("DELETE FROM sessions WHERE id = ?", (id,))
        self._rows.execute("DELETE FROM gone WHERE id = ?", (id,))

    @contextlib.asynccontextmanager
    async def _used(self, id: str, held: Held) -> AsyncIterator[None]:
        self._held[id] = held
        self._held.move_to_end(id)
        async with held.lock:
            self._rows.execute("UPDATE sessions SET used = ? WHERE id = ?", (time.time(), id))
            yield
        self._make_room()

    def _found(self, id: str, tools: Tools) -> Held | None:
        """A session that only the file knows."""
        row = self._rows.execute("SELECT question, search, page FROM sessions WHERE id = ?", (id,)).fetchone()
        if row is None:
            return None
        question, *states = row
        session = tools.session(question)
        results = [tool_result_from_json(json.loads(state)) for state in states if state]
        session.restore([ToolCall("", {}, result) for result in results])
        return self._holding(id, session)

    def _new(self, id: str, question: str, tools: Tools) -> Held:
        if len(self) >= self._most:
            raise Refused(f"{self._most} sessions are in use")
        self._rows.execute("INSERT INTO sessions VALUES (?, ?, ?, NULL, NULL)", (id, question, time.time()))
        return self._holding(id, tools.session(question))

    def _holding(self, id: str, session: SearchSession) -> Held:
        def write(place: str, state: str) -> None:
            self._rows.execute(f"UPDATE sessions SET {place} = ? WHERE id = ?", (state, id))

        return Held(session, write)

    def _make_room(self) -> None:
        """Lets go, in memory, of those that were used longest ago and are not in use now."""
        for id in list(self._held)[: max(0, len(self._held) - self._in_memory)]:
            if not self._held[id].lock.locked():
                del self._held[id]

    def _expire(self) -> None:
        now = time.time()
        old = self._rows.execute("SELECT id FROM sessions WHERE used < ?", (now - self._seconds,)).fetchall()
        for (id,) in old:
            if id in self._held and self._held[id].lock.locked():
                continue
            self.close(id)
            self._rows.execute("INSERT INTO gone VALUES (?, ?)", (id, now))
        self._rows.execute("DELETE FROM gone WHERE since < ?", (now - _REMEMBERED_GONE * self._seconds,))
