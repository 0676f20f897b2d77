"""A client of tool servers (`search/server.py`); an episode cannot tell its sessions from those in process."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from carr_jax.agent.tools import FIND, OPEN, SEARCH
from carr_jax.records import ToolCall, ToolResult
from carr_jax.search.browser import Outage, failed
from carr_jax.search.posting import Poster
from carr_jax.search.server import EXPIRED, RESTORE
from carr_jax.search.sessions import bare
from carr_jax.stored import to_json, tool_result_from_json


class RemoteTools:
    """Sessions at a tool server.  `token` is sent as a bearer token unless it is ""."""

    def __init__(self, url: str, token: str = "", request_s: float = 120.0, attempts: int = 4) -> None:
        self._poster = Poster(url, token, request_s, attempts)

    def session(self, question: str) -> RemoteSession:
        return RemoteSession(self._poster, question)


class RemoteSession:
    """One session at a server; one that the server forgot is brought back by what its calls showed."""

    def __init__(self, poster: Poster, question: str) -> None:
        self._poster, self._question = poster, question
        self._id = uuid.uuid4().hex
        self._shown: list[ToolResult] = []  # the last search and the last open
        self._behind = False  # the server does not know what was shown

    async def search(self, query: str, num: int = 10) -> ToolResult:
        return await self._call(SEARCH, {"query": query, "num": num})

    async def open(self, id_or_url: int | str) -> ToolResult:
        return await self._call(OPEN, {"id": id_or_url})

    async def find(self, pattern: str) -> ToolResult:
        return await self._call(FIND, {"pattern": pattern})

    def restore(self, calls: Sequence[ToolCall]) -> None:
        """As `browser.Session.restore`; the server is told with the next call."""
        self._shown = bare([*self._shown, *(call.result for call in calls if call.result)])
        self._behind = bool(self._shown)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            if self._behind:
                await self._bring_back()
            result = await self._post(name, arguments)
            if result.reason == EXPIRED:
                await self._bring_back()
                result = await self._post(name, arguments)
        except Outage as outage:
            return failed(outage)
        self._shown = bare([*self._shown, result])
        return result

    async def _bring_back(self) -> None:
        await self._post(RESTORE, {"results": to_json(self._shown)})
        self._behind = False

    async def _post(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises Outage when the server gives no answer that can be used."""
        request = {
            "session_id": self._id,
            "tool_call_id": uuid.uuid4().hex,
            "name": name,
            "arguments": arguments,
            "remote_env_info": {"question": self._question},
        }
        reply = await self._poster.post(request)
        if isinstance(reply, dict) and isinstance(reply.get("output"), str):
            try:
                return tool_result_from_json({"seen": [], "error": None, **reply})
            except (KeyError, TypeError):
                pass
        raise Outage("bad_reply")
