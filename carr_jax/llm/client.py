"""A client of OpenAI-compatible endpoints: one model, wherever it is served.

    async with ChatClient("deepseek-chat", endpoints, os.environ, ledger) as client:
        reply = await client.complete(request, purpose="outcome")

TLS certificates are always verified, redirects are not followed (a key would go with them), no system-wide
proxy is used, and no answer is read beyond a limit.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.errors import ChatError
from carr_jax.llm.flights import Flights
from carr_jax.llm.lanes import ChatOptions, Lane, Lanes, Timing
from carr_jax.llm.ledger import Ledger
from carr_jax.llm.messages import Dialect, Reply, Request, error_message, parse_reply, request_body, retry_after

_LARGEST = 8 << 20  # bytes of an answer
_CONNECT_S = 20.0
_MORE_ROOM = 4  # times the tokens, for a reply that was cut off
_FORGIVEN = 2  # times in a row that a key which has worked may be forbidden something


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
        options: ChatOptions = ChatOptions(),
        timing: Timing = Timing(),
    ) -> None:
        self.model, self.ledger = model, ledger
        self.flights: Flights[Any] = Flights()
        self._options, self._timing = options, timing
        self._lanes = Lanes(endpoints, environment, options, timing)

    async def __aenter__(self) -> ChatClient:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),  # shorter than servers' (TS-17)
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def complete(self, request: Request, purpose: str) -> Reply:
        """The reply to a request; one that was cut off for want of room is asked again once, with more (JP-04).

        Raises ChatError when there is none, BudgetSpent, and NoKeyLeft.
        """
        reply = await self._repeated(request, purpose)
        if reply.finish != "length":
            return reply
        roomy = dataclasses.replace(request, max_tokens=_MORE_ROOM * request.max_tokens)
        try:
            return _after(reply, await self._repeated(roomy, purpose))
        except ChatError:  # such as an endpoint that does not give so much room
            return reply

    async def _repeated(self, request: Request, purpose: str) -> Reply:
        """Asks again what may succeed later, on another lane where there is one (TS-10)."""
        failures, failed = 0, None
        while True:
            async with self._lanes.one(failed) as lane:
                try:
                    return await self._ask(lane, request, purpose)
                except ChatError as error:
                    self._lanes.failed(lane, error)
                    failures, failed, last = failures + (error.kind != "key"), lane, error
            if not last.retry or failures >= self._options.attempts:
                raise last
            if failures:
                await self._timing.sleep(self._lanes.backoff(failures))

    async def _ask(self, lane: Lane, request: Request, purpose: str) -> Reply:
        """One reply, in a dialect that the endpoint takes; one that worked is remembered."""
        dialect: Dialect | None = lane.place.dialect
        while True:
            try:
                reply = await self._paid(lane, request, dialect, purpose)
            except ChatError as error:
                refused = error.kind == "refused"
                dialect = dialect.after(error.said, request.schema is not None) if refused else None
                if dialect is None:
                    raise
            else:
                lane.answered(dialect)
                return reply

    async def _paid(self, lane: Lane, request: Request, dialect: Dialect, purpose: str) -> Reply:
        """One call, held within the budget and entered in the ledger, also when only the bill may come."""
        most = self.ledger.prices.cost(request.prompt_tokens, 0, request.max_tokens)
        async with self.ledger.hold(most):
            start = self._timing.clock()
            try:
                reply = parse_reply(await self._post(lane, request, dialect), request)
            except (ChatError, asyncio.CancelledError) as error:
                if getattr(error, "billed", True):
                    lost = Reply("", prompt_tokens=request.prompt_tokens)
                    self.ledger.record(f"{purpose} (no reply)", self.model, lost)
                raise
            cost = self.ledger.record(purpose, self.model, reply)
            took = self._timing.clock() - start
            return dataclasses.replace(reply, cost_usd=cost, latency_s=took, dialect=str(dialect))

    async def _post(self, lane: Lane, request: Request, dialect: Dialect) -> bytes:
        """The body of a successful answer.  Raises ChatError."""
        endpoint = lane.place.endpoint
        headers = {"Authorization": f"Bearer {lane.key}"} if lane.key else {}
        body = request_body(request, endpoint.model or self.model, dialect)
        url = f"{endpoint.url}/chat/completions"
        try:
            async with (
                asyncio.timeout(self._options.request_s),
                self._http.post(url, json=body, headers=headers, allow_redirects=False) as answer,
            ):
                raw = await _read(answer, lane)
        except TimeoutError as error:
            text = f"{lane}: no answer in {self._options.request_s:g} s"
            raise ChatError("timeout", text, retry=True, billed=True) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise ChatError("tls", f"{lane}: {error}") from error
        except aiohttp.ClientConnectorError as error:
            raise ChatError("unreachable", f"{lane}: {error}", retry=True) from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"{lane}: {error or type(error).__name__}"
            raise ChatError("broken", text, retry=True, billed=True) from error
        if answer.status != 200:
            raise self._refusal(lane, answer, raw)
        return raw

    def _refusal(self, lane: Lane, answer: aiohttp.ClientResponse, raw: bytes) -> ChatError:
        """What an answer other than 200 means."""
        said = error_message(raw)
        said = said.replace(lane.key, "(the key)") if lane.key else said
        text, status = f"{lane}: HTTP {answer.status}: {said}", answer.status
        if 300 <= status < 400:
            return ChatError("redirect", f"{text}; give the address that it redirects to")
        if status in (401, 402) or (status == 429 and "insufficient_quota" in raw.decode(errors="replace")):
            return ChatError("key", text, retry=True)
        if status == 403:  # the key, or one text that the endpoint will not read
            lane.forbidden += 1
            bad_key = not lane.works or lane.forbidden > _FORGIVEN
            return ChatError("key", text, retry=True) if bad_key else ChatError("forbidden", text)
        if status in (408, 429) or status >= 500:
            wait = retry_after(answer.headers.get("Retry-After"), self._timing.now())
            return ChatError("busy" if status == 429 else "server", text, retry=True, retry_after=wait)
        return ChatError("refused", text, said=said)


async def _read(answer: aiohttp.ClientResponse, lane: Lane) -> bytes:
    """The body, up to a limit.  Raises ChatError beyond."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > _LARGEST:
            raise ChatError("endless", f"{lane}: an answer of more than {_LARGEST >> 20} MiB", billed=True)
    return bytes(body)


def _after(first: Reply, second: Reply) -> Reply:
    """The second reply with what both took."""
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd", "latency_s")
    return dataclasses.replace(second, **{n: getattr(first, n) + getattr(second, n) for n in names})
