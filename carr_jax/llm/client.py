"""A client of OpenAI-compatible endpoints: one model, wherever it is served.

    async with ChatClient("deepseek-chat", endpoints, os.environ, ledger) as client:
        reply = await client.complete(request, purpose="outcome")

TLS certificates are always verified, redirects are not followed (a key would go with them), no system-wide
proxy is used, and no answer is read beyond a limit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carr_jax.calls.errors import CallError
from carr_jax.calls.flights import Flights
from carr_jax.calls.http import Answer, exchange, open_http, retry_after
from carr_jax.calls.lanes import Lane, Lanes
from carr_jax.calls.ledger import Ledger
from carr_jax.calls.patience import Patience, Timing
from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.messages import Dialect, Reply, Request, error_message, parse_reply, request_body

_LARGEST = 8 << 20  # bytes of an answer
_MORE_ROOM = 4  # times the tokens, for a reply that was cut off
_FORGIVEN = 2  # times in a row that a key which has worked may be forbidden something

log = logging.getLogger(__name__)


class ChatClient:
    """Asks `model` at the endpoints, each by the name it has there; open as an async context.

    Keys are read from `environment` by the names that the endpoints give.  Money is entered in `ledger`.
    `flights` are for those who may share an answer, see `ask`; `complete` itself is one call for each caller.
    """

    def __init__(
        self,
        model: str,
        endpoints: Sequence[Endpoint],
        environment: Mapping[str, str],
        ledger: Ledger,
        options: Patience = Patience(),
        timing: Timing = Timing(),
    ) -> None:
        self.model, self.ledger = model, ledger
        self.flights: Flights[Any] = Flights()
        self._options, self._timing = options, timing
        self._lanes = Lanes([_Place(e) for e in endpoints], environment, options, timing)

    async def __aenter__(self) -> ChatClient:
        self._http = open_http()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def complete(self, request: Request, purpose: str) -> Reply:
        """The reply to a request; one that was cut off for want of room is asked again once, with more (JP-04).

        Raises CallError when there is none, BudgetSpent, and NoKeyLeft.
        """
        reply = await self._repeated(request, purpose)
        if reply.finish != "length":
            return reply
        roomy = dataclasses.replace(request, max_tokens=_MORE_ROOM * request.max_tokens)
        try:
            return _after(reply, await self._repeated(roomy, purpose))
        except CallError:  # such as an endpoint that does not give so much room
            return reply

    async def _repeated(self, request: Request, purpose: str) -> Reply:
        return await self._lanes.repeated(lambda lane: self._ask(lane, request, purpose))

    async def _ask(self, lane: Lane, request: Request, purpose: str) -> Reply:
        """One reply, in a dialect that the endpoint takes; one that worked is remembered."""
        dialect: Dialect | None = lane.place.dialect
        while True:
            try:
                reply = await self._paid(lane, request, dialect, purpose)
            except CallError as error:
                refused = error.kind == "refused"
                dialect = dialect.after(error.said, request.schema is not None) if refused else None
                if dialect is None:
                    raise
            else:
                lane.place.takes(dialect)
                return reply

    async def _paid(self, lane: Lane, request: Request, dialect: Dialect, purpose: str) -> Reply:
        """One call, held within the budget and entered in the ledger, also when only the bill may come."""
        most = self.ledger.prices.cost(request.prompt_tokens, 0, request.max_tokens)
        async with self.ledger.hold(most):
            start = self._timing.clock()
            try:
                reply = parse_reply(await self._post(lane, request, dialect), request)
            except (CallError, asyncio.CancelledError) as error:
                if getattr(error, "billed", True):
                    lost = Reply("", prompt_tokens=request.prompt_tokens)
                    self.ledger.record(f"{purpose} (no reply)", self.model, lost)
                raise
            cost = self.ledger.record(purpose, self.model, reply)
            took = self._timing.clock() - start
            return dataclasses.replace(reply, cost_usd=cost, latency_s=took, dialect=str(dialect))

    async def _post(self, lane: Lane, request: Request, dialect: Dialect) -> bytes:
        """The body of a successful answer.  Raises CallError."""
        endpoint = lane.place.endpoint
        headers = {"Authorization": f"Bearer {lane.key}"} if lane.key else {}
        body = request_body(request, endpoint.model or self.model, dialect)
        url = f"{endpoint.url}/chat/completions"
        answer = await exchange(
            self._http,
            "POST",
            url,
            name=lane,
            seconds=self._options.request_s,
            most_bytes=_LARGEST,
            json=body,
            headers=headers,
        )
        if answer.status != 200:
            raise self._refusal(lane, answer)
        return answer.body

    def _refusal(self, lane: Lane, answer: Answer) -> CallError:
        """What an answer other than 200 means."""
        said = error_message(answer.body)
        said = said.replace(lane.key, "(the key)") if lane.key else said
        text, status = f"{lane}: HTTP {answer.status}: {said}", answer.status
        if 300 <= status < 400:
            return CallError("redirect", f"{text}; give the address that it redirects to")
        if status in (401, 402) or (
            status == 429 and "insufficient_quota" in answer.body.decode(errors="replace")
        ):
            return CallError("key", text, retry=True)
        if status == 403:  # the key, or one text that the endpoint will not read
            lane.forbidden += 1
            bad_key = not lane.works or lane.forbidden > _FORGIVEN
            return CallError("key", text, retry=True) if bad_key else CallError("forbidden", text)
        if status in (408, 429) or status >= 500:
            wait = retry_after(answer.headers.get("Retry-After"), self._timing.now())
            return CallError("busy" if status == 429 else "server", text, retry=True, retry_after=wait)
        return CallError("refused", text, said=said)


@dataclass(eq=False)
class _Place:
    """An endpoint and how it wants to be asked, as far as that was found out."""

    endpoint: Endpoint
    dialect: Dialect = Dialect()

    @property
    def url(self) -> str:
        return self.endpoint.url

    @property
    def key_names(self) -> tuple[str, ...]:
        return self.endpoint.key_names

    def takes(self, dialect: Dialect) -> None:
        """It answered when it was asked so."""
        if dialect != self.dialect:
            log.warning("%s: from now on asked with %s", self.url, dialect)
        self.dialect = dialect


def _after(first: Reply, second: Reply) -> Reply:
    """The second reply with what both took."""
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd", "latency_s")
    return dataclasses.replace(second, **{n: getattr(first, n) + getattr(second, n) for n in names})
