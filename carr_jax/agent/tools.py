"""The three browser tools: their schemas as the policy reads them, and the dispatch onto a search session.

The descriptions are short because the policy reads them in every prompt.  A dataset that brings its own
schemas (the public rollout rows do) hands them to `Chat` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from carr_jax.calls.errors import CannotGoOn
from carr_jax.records import UNAVAILABLE, ToolCall, ToolResult

SEARCH, OPEN, FIND = "browser.search", "browser.open", "browser.find"
DEFAULT_RESULTS = 10
MAX_RESULTS = 100

log = logging.getLogger(__name__)


def _schema(name: str, description: str, properties: dict, required: list[str]) -> dict:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": parameters}


TOOLS = (
    _schema(
        SEARCH,
        "Search the web.",
        {"query": {"type": "string"}, "num": {"type": "integer", "default": DEFAULT_RESULTS}},
        ["query"],
    ),
    _schema(
        OPEN,
        "Open a search result or a page.",
        {"id": {"type": ["integer", "string"], "description": "ID or URL"}},
        ["id"],
    ),
    _schema(FIND, "Find text in the open page.", {"pattern": {"type": "string"}}, ["pattern"]),
)


class SearchSession(Protocol):
    """What one episode can reach: a session remembers its last search and its open page."""

    async def search(self, query: str, num: int) -> ToolResult: ...

    async def open(self, id: int | str) -> ToolResult: ...

    async def find(self, pattern: str) -> ToolResult: ...

    def restore(self, calls: Sequence[ToolCall]) -> None:
        """Be where these calls of an interrupted episode left a session, without making them again."""
        ...


class Tools(Protocol):
    """What all episodes share: it makes a fresh session for each.

    `question` is the text of the question: a source whose pages anybody may write withholds those that give
    it away.
    """

    def session(self, question: str) -> SearchSession: ...


class BadArgument(ValueError):
    """The policy's mistake in an argument; the message is shown to it."""


async def run_call(session: SearchSession, name: str, arguments: Mapping[str, Any]) -> ToolResult:
    """Execute one call; raises CannotGoOn, and never for anything the policy or the session does wrong.

    A wrong argument gives error "bad_call" with a sentence for the policy.  An exception of the session gives
    error "unavailable"; its cause goes to the log and not to the policy.
    """
    try:
        method, values = _prepare(session, name, arguments)
    except BadArgument as mistake:
        return ToolResult(f"Error: {mistake}", error="bad_call")
    try:
        return await method(*values)
    except CannotGoOn:  # a budget is spent, no key is left: the run ends, and not this episode
        raise
    except Exception:
        log.warning("tool %s failed with arguments %r", name, values, exc_info=True)
        return ToolResult(UNAVAILABLE, error="unavailable", reason="internal")


def _prepare(session: SearchSession, name: str, arguments: Mapping[str, Any]) -> tuple[Any, tuple]:
    """The session's method for a tool name and its coerced positional arguments."""
    if name == SEARCH:
        return session.search, (_text(arguments, "query"), _count(arguments.get("num", DEFAULT_RESULTS)))
    if name == OPEN:
        return session.open, (_page(arguments),)
    if name == FIND:
        return session.find, (_text(arguments, "pattern"),)
    raise BadArgument(f"unknown tool {name[:60]!r}.")


def _text(arguments: Mapping[str, Any], key: str) -> str:
    """A non-empty valid string; numbers are written out, as in find(1871)."""
    value = arguments.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise BadArgument(f"{key} must be a non-empty string.")
    return value.encode("utf-8", "replace").decode()  # a JSON escape can smuggle in lone surrogates


def _whole(value: Any) -> int | None:
    """The integer that a JSON number or digit string means, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        digits = value.strip()
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return None


def _count(value: Any) -> int:
    """Number of results, clamped to 1..MAX_RESULTS; null means the default."""
    if value is None:
        return DEFAULT_RESULTS
    number = _whole(value)
    if number is None:
        raise BadArgument("num must be an integer.")
    return min(max(number, 1), MAX_RESULTS)


def _page(arguments: Mapping[str, Any]) -> int | str:
    """A result number (also as 3.0 or "3") or a URL."""
    number = _whole(arguments.get("id"))
    if number is not None:
        return number
    if isinstance(arguments.get("id"), str):
        return _text(arguments, "id")
    raise BadArgument("id must be a result number or a URL.")
