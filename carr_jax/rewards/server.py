"""The reward server: `rewards.protocol` over HTTP.

    POST /evaluate         one trajectory, in the reference's protocol
    POST /evaluate_batch   the trajectories of one question
    GET  /health           "ok", or 503 while it ends
    GET  /metrics          counters, in the text form that Prometheus reads

A judgement that failed is no zero: /evaluate answers it with 503 and Retry-After, with the typed reply as its
body, so that clients of the reference, which expect numbers, ask again.  /evaluate_batch has null rewards.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from carr_jax.calls.errors import CannotGoOn
from carr_jax.records import InputError
from carr_jax.rewards import protocol
from carr_jax.rewards.judge import Judge

TOKEN_VARIABLE = "CARR_REWARD_TOKEN"
_RETRY = {"Retry-After": "2"}
_OPEN = ("/health",)  # needs no token: those who balance load have none


@dataclass(frozen=True)
class Limits:
    """What one server takes on.  The reference's clients give up after 120 s, so the answer comes before."""

    evaluations: int = 128  # requests judged at a time
    waiting: int = 512  # requests that may wait for their turn; further ones are refused with 503
    seconds: float = 110.0  # of one request, waiting included
    body_bytes: int = 32 * 1024**2


class Desk:
    """Who is judged, who waits, what is counted; refuses when it is full or about to close."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.closing = False
        self.counts: Counter[str] = Counter()
        self.inside = 0  # judged or waiting
        self._turns = asyncio.Semaphore(limits.evaluations)
        self._empty = asyncio.Event()
        self._empty.set()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn.  Raises Refused when too many wait already, or the server is closing."""
        if self.closing:
            raise Refused("the server is closing")
        if self.inside >= self.limits.evaluations + self.limits.waiting:
            raise Refused(f"{self.inside} requests are judged or wait already")
        self.inside += 1
        self._empty.clear()
        try:
            async with self._turns:
                yield
        finally:
            self.inside -= 1
            if not self.inside:
                self._empty.set()

    async def close(self) -> None:
        """Refuse what comes; returns when all that came before is answered."""
        self.closing = True
        await self._empty.wait()


class Refused(Exception):
    """The server takes no more at the moment; the message says why."""


# ---------------------------------------------------------------------------------------------------- handlers


def make_app(
    judge: Judge, citations: str = "tolerant", token: str = "", limits: Limits | None = None
) -> web.Application:
    """The application around a judge; requests need `Authorization: Bearer <token>` unless it is ""."""
    desk = Desk(limits or Limits())
    app = web.Application(client_max_size=desk.limits.body_bytes, middlewares=[_guard(token)])
    app[DESK] = desk
    app.router.add_post(
        "/evaluate", _handler(desk, protocol.read_evaluation, protocol.evaluate, judge, citations)
    )
    app.router.add_post(
        "/evaluate_batch", _handler(desk, protocol.read_batch, protocol.evaluate_batch, judge, citations)
    )
    app.router.add_get("/health", _health)
    app.router.add_get("/metrics", _metrics)
    return app


DESK = web.AppKey("desk", Desk)


def _guard(token: str) -> Callable:
    @web.middleware
    async def guard(request: web.Request, handler: Callable) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if token and request.path not in _OPEN and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            return web.json_response(_error("a bearer token is needed"), status=401)
        return await handler(request)

    return guard


def _handler(
    desk: Desk,
    read: Callable[[Any], Any],
    work: Callable[..., Awaitable[protocol.Json]],
    judge: Judge,
    citations: str,
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A POST route: body to request, request to reply, and which status the reply has."""

    async def handle(request: web.Request) -> web.Response:
        start = time.monotonic()
        response = await answer(request)
        desk.counts[f'requests_total{{path="{request.path}",status="{response.status}"}}'] += 1
        desk.counts["seconds_total"] += time.monotonic() - start
        return response

    async def answer(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(desk.limits.seconds), desk.turn():
                asked = read(await _body(request))
                reply = await work(asked, judge, citations)
        except (Refused, CannotGoOn) as error:  # too busy, or the judge's budget or keys are at an end
            return web.json_response(_error(str(error)), status=503, headers=_RETRY)
        except web.HTTPRequestEntityTooLarge:
            return web.json_response(_error(f"more than {desk.limits.body_bytes} bytes"), status=413)
        except InputError as error:
            return web.json_response(_error(str(error)), status=400)
        except TimeoutError:
            reply = protocol.timed_out(desk.limits.seconds)
        _count(desk, reply)
        failed = reply["status"] == "unknown" and "samples" not in reply
        return web.json_response(reply, status=503 if failed else 200, headers=_RETRY if failed else None)

    return handle


async def _body(request: web.Request) -> Any:
    """The request's JSON.  Raises InputError for anything else, NaN included."""
    try:
        return json.loads(await request.read(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _error(reason: str) -> protocol.Json:
    return {"status": "error", "reason": reason}


def _count(desk: Desk, reply: protocol.Json) -> None:
    for sample in reply.get("samples", [reply]):
        desk.counts[f'trajectories_total{{status="{sample["status"]}"}}'] += 1
    for key, value in reply.get("usage", {}).items():
        desk.counts[f"judge_{key}_total"] += value


async def _health(request: web.Request) -> web.Response:
    desk = request.app[DESK]
    status = {"status": "closing" if desk.closing else "ok", "inside": desk.inside}
    return web.json_response(status, status=503 if desk.closing else 200)


async def _metrics(request: web.Request) -> web.Response:
    desk = request.app[DESK]
    gauges = {"inside": desk.inside, "evaluations_limit": desk.limits.evaluations}
    values = {**gauges, **dict(sorted(desk.counts.items()))}
    lines = [f"carr_reward_{name} {value:.15g}" for name, value in values.items()]
    return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


# ----------------------------------------------------------------------------------------------------- running


def check_exposure(host: str, token: str) -> None:
    """Raises InputError when others than this machine could ask without a token."""
    try:
        inside = ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = host == "localhost"
    if not inside and not token:
        raise InputError(f"--host={host} is open to others: set {TOKEN_VARIABLE}, or listen on 127.0.0.1")


async def serve(
    app: web.Application, host: str, port: int, ready: Callable[[int], None], told: asyncio.Event | None = None
) -> None:
    """Serve until SIGTERM or SIGINT (or `told`), then refuse what comes and answer what is there.

    `ready` is called with the port, once it is open.  Raises InputError when the port is taken.
    """
    told = told or asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        ready(runner.addresses[0][1])
        await told.wait()
        await app[DESK].close()
    except OSError as error:
        raise InputError(
            f"{host}:{port}: {error.strerror or error}; stop what uses it, or choose --port"
        ) from None
    finally:
        await runner.cleanup()
