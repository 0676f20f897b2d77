"""The reward server: `rewards.protocol` over HTTP.

    POST /evaluate         one trajectory, in the reference's protocol
    POST /evaluate_batch   the trajectories of one question
    GET  /health           "ok", or 503 while it ends
    GET  /metrics          counters, in the text form that Prometheus reads

A judgement that failed is no zero: /evaluate answers it with 503 and Retry-After, with the typed reply as its
body, so that clients of the reference, which expect numbers, ask again.  /evaluate_batch has null rewards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from carr_jax.calls.errors import CannotGoOn
from carr_jax.rewards import protocol
from carr_jax.rewards.judge import Judge
from carr_jax.serving import DESK, RETRY, Desk, Refused, exposition, guard, health, route

TOKEN_VARIABLE = "CARR_REWARD_TOKEN"


@dataclass(frozen=True)
class Limits:
    """What one server takes on.  The reference's clients give up after 120 s, so the answer comes before."""

    evaluations: int = 128  # requests judged at a time
    waiting: int = 512  # requests that may wait for their turn; further ones are refused with 503
    seconds: float = 110.0  # of one request, waiting included
    body_bytes: int = 32 * 1024**2


# ---------------------------------------------------------------------------------------------------- handlers


def make_app(
    judge: Judge, citations: str = "tolerant", token: str = "", limits: Limits | None = None
) -> web.Application:
    """The application around a judge; requests need `Authorization: Bearer <token>` unless it is ""."""
    limits = limits or Limits()
    desk = Desk(limits.evaluations, limits.waiting)
    app = web.Application(client_max_size=limits.body_bytes, middlewares=[guard(token)])
    app[DESK] = desk
    app.router.add_post(
        "/evaluate", _handler(desk, limits, protocol.read_evaluation, protocol.evaluate, judge, citations)
    )
    app.router.add_post(
        "/evaluate_batch",
        _handler(desk, limits, protocol.read_batch, protocol.evaluate_batch, judge, citations),
    )
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", _metrics)
    return app


def _handler(
    desk: Desk,
    limits: Limits,
    read: Callable[[Any], Any],
    judge_it: Callable[..., Awaitable[protocol.Json]],
    judge: Judge,
    citations: str,
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A POST route: body to request, request to reply, and which status the reply has."""

    async def work(request: Any) -> web.Response:
        asked = read(request)
        try:
            return answered(await judge_it(asked, judge, citations))
        except CannotGoOn as problem:  # the judge's budget or keys are at an end
            raise Refused(str(problem)) from problem

    def answered(reply: protocol.Json) -> web.Response:
        _count(desk, reply)
        failed = reply["status"] == "unknown" and "samples" not in reply
        return web.json_response(reply, status=503 if failed else 200, headers=RETRY if failed else None)

    def late() -> web.Response:
        return answered(protocol.timed_out(limits.seconds))

    return route(desk, limits.seconds, limits.body_bytes, work, late)


def _count(desk: Desk, reply: protocol.Json) -> None:
    for sample in reply.get("samples", [reply]):
        desk.counts[f'trajectories_total{{status="{sample["status"]}"}}'] += 1
    for key, value in reply.get("usage", {}).items():
        desk.counts[f"judge_{key}_total"] += value


async def _metrics(request: web.Request) -> web.Response:
    desk = request.app[DESK]
    return exposition("carr_reward", {"inside": desk.inside, "evaluations_limit": desk.at_a_time}, desk)
