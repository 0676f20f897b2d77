"""Ask until there is an answer that can be used: from the cache, else from the model, a few times."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from carr_jax.calls.errors import CallError, NotRecorded
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.errors import Unusable
from carr_jax.llm.messages import Reply, Request
from carr_jax.llm.replies import is_from_reasoning

AGAIN = "Your last reply could not be used. Reply with exactly one JSON object, as described above."
_NEXT_DRAW = 1_000_003  # added to the seed: further away than anybody counts votes


@dataclass(frozen=True)
class Asked:
    """What came of a question: `value` as it was read, or None and the `reason`.

    `calls` counts the replies that were paid for, `invalid` those among them that could not be used, and
    `from_reasoning` whether the value was found in the reasoning only.
    """

    value: Any
    reason: str = ""
    raw: str = ""
    calls: int = 0
    invalid: int = 0
    from_reasoning: bool = False
    tokens: int = 0
    cost_usd: float = 0.0
    latency_s: float = 0.0
    cached: bool = False

    def plus(self, reply: Reply) -> Asked:
        """With one more paid reply."""
        return dataclasses.replace(
            self,
            raw=reply.text or reply.reasoning or reply.refusal,
            calls=self.calls + 1,
            tokens=self.tokens + reply.prompt_tokens + reply.completion_tokens,
            cost_usd=self.cost_usd + reply.cost_usd,
            latency_s=self.latency_s + reply.latency_s,
        )

    def shared(self) -> Asked:
        """The same for another caller, who paid nothing."""
        return dataclasses.replace(
            self, calls=0, invalid=0, tokens=0, cost_usd=0.0, latency_s=0.0, cached=self.value is not None
        )


async def ask(
    client: ChatClient,
    cache: ReplyCache,
    request: Request,
    read: Callable[[Reply], Any],
    *,
    purpose: str,
    tries: int,
) -> Asked:
    """The value that `read` finds in a reply, from the cache or after at most `tries` replies.

    `read` raises Unusable.  Who asks the same meanwhile waits for this answer, as it was read here; for him it
    is as if it came from the cache.  A reply that could be used is kept under the first request.

    Raises CannotGoOn when the budget is spent, no key is left, or nothing is recorded where only records are
    replayed.
    """
    key = request.key(client.model)

    async def answer() -> Asked:
        known = await _recorded(cache, key, read)
        return known or await _answered(client, cache, request, read, purpose, tries)

    asked, mine = await client.flights.join(key, answer)
    return asked if mine else asked.shared()


async def _answered(
    client: ChatClient,
    cache: ReplyCache,
    request: Request,
    read: Callable[[Reply], Any],
    purpose: str,
    tries: int,
) -> Asked:
    """What the model says, which is kept when it could be used."""
    asked = Asked(None)
    for attempt in range(tries):
        try:
            reply = await client.complete(_attempt(request, attempt), purpose)
            asked = asked.plus(reply)
            value = read(reply)
        except CallError as error:
            return dataclasses.replace(asked, reason=str(error))
        except Unusable as error:
            asked = dataclasses.replace(asked, invalid=asked.invalid + 1, reason=str(error))
            continue
        await asyncio.to_thread(cache.put, request.key(client.model), reply)
        return dataclasses.replace(asked, value=value, reason="", from_reasoning=is_from_reasoning(reply))
    return asked


async def _recorded(cache: ReplyCache, key: str, read: Callable[[Reply], Any]) -> Asked | None:
    """What the cache knows; a reply that is no longer understood is as good as none."""
    reply = await asyncio.to_thread(cache.get, key)
    if reply is None:
        return None
    try:
        value = read(reply)
    except Unusable as error:
        if cache.replay:
            raise NotRecorded(f"{cache.path} has a reply that cannot be used: {error}") from error
        return None
    return Asked(value, raw=reply.text or reply.reasoning, cached=True, from_reasoning=is_from_reasoning(reply))


def _attempt(request: Request, attempt: int) -> Request:
    """The request for a further attempt: another draw, and other words, for seeds may mean nothing."""
    if not attempt:
        return request
    messages = (*request.messages[:-1], (request.messages[-1][0], f"{request.messages[-1][1]}\n\n{AGAIN}"))
    return dataclasses.replace(request, messages=messages, seed=request.seed + attempt * _NEXT_DRAW)
