"""A language model as judge: the three steps of CaRR (section 3) over any OpenAI-compatible endpoint.

Whatever keeps a verdict from being known (no reply, no usable reply, votes that do not agree) is status
"unknown" with the reason, never a wrong answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from carr_jax.addresses import canonical_url
from carr_jax.llm.ask import Asked, ask
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.errors import Unusable
from carr_jax.llm.messages import Reply, Request
from carr_jax.llm.replies import answer_text, read_object
from carr_jax.records import Question, Verdict
from carr_jax.rewards.judge import stated_name
from carr_jax.rewards.matching import fold_name
from carr_jax.rewards.prompts import Prompt, identify_prompt, outcome_prompt, support_prompt

Read = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class JudgeOptions:
    """How a judge is asked.  `votes` is odd; sizes are in bytes; another `draw` asks for other replies."""

    temperature: float = 0.0
    max_tokens: int = 2048
    tries: int = 3
    votes: int = 1
    page_bytes: int = 24_000
    pages_bytes: int = 200_000
    draw: int = 0


class LLMJudge:
    """Implements `rewards.judge.Judge`.  Raises nothing but `calls.errors.CannotGoOn`."""

    def __init__(self, client: ChatClient, cache: ReplyCache, options: JudgeOptions = JudgeOptions()) -> None:
        self._client, self._cache, self._options = client, cache, options

    async def outcome(self, question: Question, response: str) -> Verdict:
        """R_o.  The judge extracts the final answer first; without one the answer is wrong."""
        prompt = outcome_prompt(question, response, self._options.pages_bytes)
        verdict = await self._verdict("outcome", prompt, read_outcome, bool)
        return verdict if verdict.parsed is None else replace(verdict, parsed=verdict.parsed["correct"])

    async def identify(self, question: Question, response: str) -> Verdict:
        """Step 1; votes are counted for each entity, and names are equal that `fold_name` makes equal."""
        prompt = identify_prompt(question, response, self._options.pages_bytes)
        if not prompt.keys:
            return Verdict("identify", "ok", {}, calls=0)
        return await self._verdict("identify", prompt, read_names, lambda name: name and fold_name(name))

    async def support(
        self,
        question: Question,
        names: Mapping[str, str] | None,
        indices: Sequence[int],
        pages: Mapping[str, str],
    ) -> Verdict:
        """Step 2; `evidence` holds the addresses that are said to prove each statement."""
        limits = (self._options.page_bytes, self._options.pages_bytes)
        prompt = support_prompt(question, names, indices, pages, *limits)
        verdict = await self._verdict("support", prompt, lambda said: read_proofs(said, prompt.pages), bool)
        if verdict.parsed is None:
            return verdict
        proofs = tuple(verdict.parsed.values())
        return replace(verdict, parsed=[bool(proof) for proof in proofs], evidence=proofs)

    async def _verdict(self, step: str, prompt: Prompt, read: Read, same: Callable[[Any], Any]) -> Verdict:
        """What the majority says of each key; `same` makes values equal that count as one."""

        def usable(reply: Reply) -> dict[str, Any]:
            return read(read_object(answer_text(reply), tuple(prompt.keys), {"code": prompt.code}))

        options = self._options
        request = Request(prompt.messages, options.max_tokens, options.temperature, schema=prompt.schema)

        def vote(number: int) -> Awaitable[Asked]:
            ballot = replace(request, seed=options.draw * options.votes + number)
            return ask(self._client, self._cache, ballot, usable, purpose=step, tries=options.tries)

        return counted(step, await asyncio.gather(*map(vote, range(options.votes))), same)


# ------------------------------------------------------------------------------------------ what a reply says


def read_outcome(said: Mapping[str, Any]) -> dict[str, bool]:
    """{"correct": bool}.  Raises Unusable for a verdict in other words, or one that contradicts itself."""
    if not isinstance(said["correct"], bool):
        raise Unusable(f"'correct' is {said['correct']!r:.80}, not true or false")
    if said["correct"] and _name(said, "final_answer") is None:
        raise Unusable("the answer is called correct, and no answer was found")
    return {"correct": said["correct"]}


def read_names(said: Mapping[str, Any]) -> dict[str, str | None]:
    """The name of each entity, None where the reply has null or a word for it (RC-06).  Raises Unusable."""
    return {entity: _name(said, entity) for entity in said}


def _name(said: Mapping[str, Any], key: str) -> str | None:
    try:
        return stated_name(said[key])
    except ValueError as error:
        raise Unusable(f"{key!r}: {error}") from error


def read_proofs(said: Mapping[str, Any], given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each statement the `given` addresses that prove it, () when it is not supported.

    Pages go by their names in the prompt, P1 for the first of `given`, or by their address.  What is called
    supported by pages that nobody gave is not supported.  Raises Unusable.
    """
    named = {canonical_url(url): url for url in given} | {f"P{i}": url for i, url in enumerate(given, 1)}
    return {key: _proof(key, value, named) for key, value in said.items()}


def _proof(key: str, value: Any, named: Mapping[str, str]) -> tuple[str, ...]:
    if not isinstance(value, dict) or not isinstance(value.get("supported"), bool):
        raise Unusable(f"{key!r} has no 'supported' that is true or false")
    pages = value.get("pages")
    if not isinstance(pages, list) or not all(isinstance(page, str) for page in pages):
        raise Unusable(f"{key!r} has no list of pages")
    if not value["supported"]:
        return ()
    found = (named.get(page.strip(" []")) or named.get(canonical_url(page)) for page in pages)
    return tuple(dict.fromkeys(url for url in found if url))


# -------------------------------------------------------------------------------------------------- counting


def counted(step: str, votes: Sequence[Asked], same: Callable[[Any], Any]) -> Verdict:
    """The verdict that more than half of all votes, missing ones included, give for every key, else unknown."""
    said = [vote.value for vote in votes if vote.value is not None]
    parsed, open_keys = {}, []
    for key in said[0] if said else ():
        winner, number = Counter(same(value[key]) for value in said).most_common(1)[0]
        if 2 * number > len(votes):
            parsed[key] = next(value[key] for value in said if same(value[key]) == winner)
        else:
            open_keys.append(key)
    if 2 * len(said) > len(votes) and not open_keys:
        return _verdict_of(step, votes, "ok", parsed, "\n\n".join(vote.raw for vote in votes))
    reasons = [vote.reason for vote in votes if vote.reason]
    if open_keys:
        reasons.append(f"{len(said)} of {len(votes)} votes do not agree on {', '.join(open_keys)}")
    return _verdict_of(step, votes, "unknown", None, "; ".join([*reasons, *(vote.raw for vote in votes)]))


def _verdict_of(step: str, votes: Sequence[Asked], status: str, parsed: Any, raw: str) -> Verdict:
    return Verdict(
        step,
        status,
        parsed,
        raw,
        tokens=sum(vote.tokens for vote in votes),
        cost_usd=sum(vote.cost_usd for vote in votes),
        latency_s=max(vote.latency_s for vote in votes),
        cached=all(vote.cached for vote in votes),
        calls=sum(vote.calls for vote in votes),
        invalid=sum(vote.invalid for vote in votes),
        from_reasoning=sum(vote.from_reasoning for vote in votes),
    )
