"""The tool server: browser sessions over HTTP, in the protocol of the public CaRR tool server.

    POST /          {"session_id", "name", "arguments", "remote_env_info"[, "tool_call_id"]} -> {"output", ...}
    GET  /health    "ok", or 503 while it ends
    GET  /metrics   counters, in the text form that Prometheus reads

Beside the reference's `output` a reply has `seen`, `error` and `reason`, so that a client of ours loses
nothing.  `start_session` and `close_session` are the reference's; `restore_session` is ours, and takes what the
calls of an interrupted episode showed.  What a source could not do is answered with a code, never with a 500.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from carr_jax.agent.tools import Tools, run_call
from carr_jax.calls.errors import CannotGoOn
from carr_jax.records import UNAVAILABLE, InputError, ToolCall, ToolResult
from carr_jax.search.sessions import Held, Sessions
from carr_jax.search.web import WebTools
from carr_jax.serving import DESK, Desk, Refused, busy, exposition, guard, health, route
from carr_jax.stored import to_json, tool_result_from_json

TOKEN_VARIABLE = "CARR_TOOLS_TOKEN"
START, CLOSE, RESTORE = "start_session", "close_session", "restore_session"
EXPIRED = "session_expired"  # the reason of a call to a session that was forgotten
_KEYS = ("session_id", "name", "arguments", "remote_env_info")
_ID_CHARS = 256
_RESTORED = 10_000  # most results of one restore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one server takes on."""

    calls: int = 256  # executed at a time
    waiting: int = 4096  # calls that may wait for their turn; further ones are refused with 503
    seconds: float = 110.0  # of one call, waiting included
    body_bytes: int = 1 << 20


@dataclass(frozen=True)
class Asked:
    """A request that was read: which tool of which session, and the text of the question, if it is told."""

    session_id: str
    name: str
    arguments: Mapping[str, Any]
    question: str
    tool_call_id: Any


def make_app(
    tools: Tools, sessions: Sessions, token: str = "", limits: Limits | None = None
) -> web.Application:
    """The application around tools; requests need `Authorization: Bearer <token>` unless it is ""."""
    limits = limits or Limits()
    app = web.Application(client_max_size=limits.body_bytes, middlewares=[guard(token)])
    desk = app[DESK] = Desk(limits.calls, limits.waiting)

    async def metrics(request: web.Request) -> web.Response:
        gauges = {"inside": desk.inside, "sessions": len(sessions)}
        if isinstance(tools, WebTools):
            gauges |= {f"web_{name}": value for name, value in tools.totals().items()}
        return exposition("carr_tools", gauges, desk)

    async def work(request: Any) -> web.Response:
        asked = read(request)
        result = await act(asked, tools, sessions)
        desk.counts[f'calls_total{{error="{result.error or "none"}"}}'] += 1
        named = {"session_id": asked.session_id, "tool_call_id": asked.tool_call_id}
        return web.json_response({**named, **to_json(result)})

    def late() -> web.Response:
        return busy(f"no answer in {limits.seconds:g} s")

    app.router.add_post("/", route(desk, limits.seconds, limits.body_bytes, work, late))
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    return app


def read(request: Any) -> Asked:
    """Raises InputError that says what is wrong."""
    if not isinstance(request, dict):
        raise InputError("the request must be an object with keys")
    if missing := [key for key in _KEYS if key not in request]:
        raise InputError(f"the request lacks {', '.join(missing)}")
    id, name, arguments, info = (request[key] for key in _KEYS)
    if not isinstance(id, str) or not 0 < len(id) <= _ID_CHARS:
        raise InputError(f"session_id must be a string of 1 to {_ID_CHARS} characters")
    if not isinstance(name, str):
        raise InputError("name must be a string")
    if not isinstance(arguments, dict):
        raise InputError("arguments must be an object")
    if not isinstance(info, dict) and not (info is None and name in (START, CLOSE)):
        raise InputError("remote_env_info must be an object")
    call_id = request.get("tool_call_id")
    return Asked(id, name, arguments, _question(info or {}), call_id if isinstance(call_id, str) else None)


def _question(info: Mapping[str, Any]) -> str:
    """The question as our clients tell it, or as the reference's do: the strings that must not be found."""
    texts = info.get("search_forbidden_strs", [])
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError("search_forbidden_strs must be a list of strings")
    question = info.get("question", "\n".join(texts))
    if not isinstance(question, str):
        raise InputError("question must be a string")
    return question


async def act(asked: Asked, tools: Tools, sessions: Sessions) -> ToolResult:
    """What one request does; calls of one session come one after the other.

    Raises InputError for what cannot be restored, and Refused when there is no room for another session, and
    when the source cannot go on at all.
    """
    if asked.name == CLOSE:
        sessions.close(asked.session_id)
        return ToolResult("The session is closed.")
    if asked.name == RESTORE:
        results = _results(asked.arguments)
        async with sessions.renewed(asked.session_id, asked.question, tools) as held:
            held.session.restore([ToolCall("", {}, result) for result in results])
            held.remember(*results)
        return ToolResult("The session is restored.")
    async with sessions.entered(asked.session_id, asked.question, tools) as held:
        if held is None:
            return ToolResult(UNAVAILABLE, error="unavailable", reason=EXPIRED)
        return await _called(held, asked)


async def _called(held: Held, asked: Asked) -> ToolResult:
    if asked.name == START:
        return ToolResult("The session is open.")
    try:
        result = await run_call(held.session, asked.name, asked.arguments)
    except CannotGoOn as problem:  # a budget is spent, no key is left: nothing that is asked again helps
        log.warning("%s; %s", problem, problem.remedy)
        raise Refused(str(problem)) from problem
    held.remember(result)
    return result


def _results(arguments: Mapping[str, Any]) -> Sequence[ToolResult]:
    rows = arguments.get("results")
    if not isinstance(rows, list) or len(rows) > _RESTORED:
        raise InputError(f"results must be a list of at most {_RESTORED}")
    try:
        results = [tool_result_from_json(row) for row in rows]
        if all(isinstance(s.url, str) and isinstance(s.asked, str) for r in results for s in r.seen):
            return results
    except (AttributeError, KeyError, TypeError):
        pass
    raise InputError("results must be what calls of this server showed")
