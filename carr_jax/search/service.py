"""One paid service of the web, such as a search API: what a call costs, and what its refusals mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from carr_jax.calls.errors import CallError
from carr_jax.calls.http import Answer, exchange, retry_after
from carr_jax.calls.lanes import Lane, Lanes
from carr_jax.calls.ledger import Ledger, Spent
from carr_jax.calls.patience import Patience, Timing

_LARGEST = 16 << 20  # bytes of an answer
_FORGIVEN = 2  # times in a row that a key which has worked may be forbidden something

T = TypeVar("T")


@dataclass(frozen=True)
class Address:
    """Where a service is, the environment variables of its keys, and what a call costs in US dollars."""

    url: str
    key_names: tuple[str, ...] = ()
    price_usd: float = 0.0


@dataclass(frozen=True)
class Call:
    """One HTTP request; what holds the key goes to `Address.url` and nowhere else."""

    method: str
    url: Any
    headers: Mapping[str, str]
    options: Mapping[str, Any]


class Service:
    """Calls one address with its keys; `name` is what it is called in the ledger and in errors."""

    def __init__(
        self,
        name: str,
        address: Address,
        environment: Mapping[str, str],
        http: aiohttp.ClientSession,
        ledger: Ledger,
        patience: Patience,
        timing: Timing = Timing(),
    ) -> None:
        self.name, self.address = name, address
        self._http, self._ledger, self._patience, self._timing = http, ledger, patience, timing
        self._lanes = Lanes([address], environment, patience, timing)

    async def call(
        self,
        purpose: str,
        request: Callable[[str], Call],
        read: Callable[[Answer], T],
        answers: Callable[[int], bool] = lambda status: status == 200,
    ) -> T:
        """What `read` finds in an answer to `request(key)`, asked until there is one whose status `answers`.

        `read` raises ValueError for what is garbled.  Raises CallError, and CannotGoOn.
        """
        return await self._lanes.repeated(lambda lane: self._paid(lane, purpose, request, read, answers))

    async def _paid(self, lane: Lane, purpose: str, request, read, answers) -> Any:
        """One call, held within the budget and entered in the ledger, also when only the bill may come."""
        price = self.address.price_usd
        async with self._ledger.hold(price):
            try:
                found = self._understood(lane, await self._sent(lane, request(lane.key)), read, answers)
            except (CallError, asyncio.CancelledError) as error:
                if getattr(error, "billed", True):
                    self._ledger.enter(f"{purpose} (no reply)", self.name, Spent(1, cost_usd=price))
                raise
            self._ledger.enter(purpose, self.name, Spent(1, cost_usd=price))
            return found

    async def _sent(self, lane: Lane, call: Call) -> Answer:
        return await exchange(
            self._http,
            call.method,
            call.url,
            name=lane,
            seconds=self._patience.request_s,
            most_bytes=_LARGEST,
            headers=call.headers,
            **call.options,
        )

    def _understood(self, lane: Lane, answer: Answer, read: Callable[[Answer], T], answers) -> T:
        if not answers(answer.status):
            raise self._refusal(lane, answer)
        try:
            return read(answer)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise CallError("garbled", f"{lane}: {type(error).__name__}", retry=True, billed=True) from error

    def _refusal(self, lane: Lane, answer: Answer) -> CallError:
        """What another status means; nothing of the body is repeated, which may hold a key (TS-10)."""
        status, text = answer.status, f"{lane}: HTTP {answer.status}"
        if status in (401, 402):
            return CallError("key", text, retry=True)
        if status == 403:
            lane.forbidden += 1
            bad_key = not lane.works or lane.forbidden > _FORGIVEN
            return CallError("key", text, retry=True) if bad_key else CallError("forbidden", text)
        if status in (408, 429) or status >= 500:
            wait = retry_after(answer.headers.get("Retry-After"), self._timing.now())
            return CallError("busy" if status == 429 else "server", text, retry=True, retry_after=wait)
        return CallError("refused", text)
