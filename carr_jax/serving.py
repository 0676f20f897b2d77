"""What our HTTP servers share: who may ask, how much is taken on at a time, and how a server ends."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from carr_jax.records import InputError

RETRY = {"Retry-After": "2"}
_OPEN = ("/health",)  # needs no token: those who balance load have none


class Refused(Exception):
    """The server takes no more at the moment; the message says why."""


class Desk:
    """Who is served, who waits, what is counted; refuses when it is full or about to close."""

    def __init__(self, at_a_time: int, waiting: int) -> None:
        self.at_a_time, self.waiting = at_a_time, waiting
        self.closing = False
        self.counts: Counter[str] = Counter()
        self.inside = 0  # served or waiting
        self._turns = asyncio.Semaphore(at_a_time)
        self._empty = asyncio.Event()
        self._empty.set()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn.  Raises Refused when too many wait already, or the server is closing."""
        if self.closing:
            raise Refused("the server is closing")
        if self.inside >= self.at_a_time + self.waiting:
            raise Refused(f"{self.inside} requests are served or wait already")
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


DESK = web.AppKey("desk", Desk)


def guard(token: str) -> Callable:
    """The middleware that wants `Authorization: Bearer <token>`, unless the token is ""."""

    @web.middleware
    async def guarded(request: web.Request, handler: Callable) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode()
        if token and request.path not in _OPEN and not hmac.compare_digest(given, f"Bearer {token}".encode()):
            return web.json_response(error("a bearer token is needed"), status=401)
        return await handler(request)

    return guarded


def route(
    desk: Desk,
    seconds: float,
    most_bytes: int,
    work: Callable[[Any], Awaitable[web.Response]],
    late: Callable[[], web.Response],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A POST route: `work` answers the JSON of a request when its turn comes, `late` when that takes too long.

    `work` may raise Refused (503) and InputError (400).
    """

    async def handle(request: web.Request) -> web.Response:
        start = time.monotonic()
        response = await answer(request)
        desk.counts[f'requests_total{{path="{request.path}",status="{response.status}"}}'] += 1
        desk.counts["seconds_total"] += time.monotonic() - start
        return response

    async def answer(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(seconds), desk.turn():
                return await work(await _body(request))
        except Refused as problem:
            return busy(str(problem))
        except web.HTTPRequestEntityTooLarge:
            return web.json_response(error(f"more than {most_bytes} bytes"), status=413)
        except InputError as problem:
            return web.json_response(error(str(problem)), status=400)
        except TimeoutError:
            return late()

    return handle


def busy(reason: str) -> web.Response:
    """503: the same request may succeed later."""
    return web.json_response(error(reason), status=503, headers=RETRY)


async def _body(request: web.Request) -> Any:
    """The request's JSON.  Raises InputError for anything else, NaN included."""
    try:
        return json.loads(await request.read(), parse_constant=_no_number)
    except (ValueError, RecursionError) as failure:
        raise InputError(f"the body is not JSON: {failure}") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def error(reason: str) -> dict[str, str]:
    """The body of a refusal."""
    return {"status": "error", "reason": reason}


async def health(request: web.Request) -> web.Response:
    """ "ok", or 503 while the server ends."""
    desk = request.app[DESK]
    status = {"status": "closing" if desk.closing else "ok", "inside": desk.inside}
    return web.json_response(status, status=503 if desk.closing else 200)


def exposition(prefix: str, gauges: Mapping[str, float], desk: Desk) -> web.Response:
    """Gauges and counters in the text form that Prometheus reads."""
    values = {**gauges, **dict(sorted(desk.counts.items()))}
    lines = [f"{prefix}_{name} {value:.15g}" for name, value in values.items()]
    return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


def check_exposure(host: str, token: str, variable: str) -> None:
    """Raises InputError when others than this machine could ask without the token that `variable` holds."""
    try:
        inside = ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = host == "localhost"
    if not inside and not token:
        raise InputError(f"--host={host} is open to others: set {variable}, or listen on 127.0.0.1")


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
    except OSError as failure:
        raise InputError(
            f"{host}:{port}: {failure.strerror or failure}; stop what uses it, or choose --port"
        ) from None
    finally:
        await runner.cleanup()
