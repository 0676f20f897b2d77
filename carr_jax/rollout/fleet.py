"""Several SGLang servers as one: who is alive, who gets a request, new weights on all or on none."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carr_jax.rollout.engine import EngineError, WeightUpdateError
from carr_jax.rollout.messages import ServerRefused
from carr_jax.rollout.sglang import Capabilities, SGLangServer

log = logging.getLogger(__name__)

_PROMPT = 24  # tokens of the known prompt
_TOLERANCE = 1e-3  # between servers, in its log-probs
_OTHERS = "other log-probs of the known prompt than the first server"


class _NoServer(WeightUpdateError):
    """All servers have been ejected; they may return."""


@dataclass(frozen=True)
class PoolOptions:
    """How patient a pool is.  Times in seconds.

    A request may take `request_s + prefill_s * prefix + decode_s * max_tokens`, not counting pauses; so a long
    prefill is not taken for death.  After `misses` failures in a row (of requests, or of looks at it every
    `health_s`) a server gets no more requests until it answers again.

    `in_flight` says what a weight update does to turns: with "keep" the servers hold them and go on under the
    new weights; with "resume" they are aborted, and the rest is sampled from the longer prefix, which takes
    about a second more.  "keep" needs servers that name the weights of every token (sglang 0.5.23 does) and is
    "resume" otherwise.  Neither loses a token, except that a request which a server has put back into its queue
    for want of memory loses up to 50 when it is aborted.
    """

    attempts: int = 8  # at one turn, before its episode ends in an engine error
    backoff_s: float = 0.5  # before the second attempt; doubled for each further one, and jittered
    request_s: float = 60.0
    prefill_s: float = 0.005
    decode_s: float = 0.25
    health_s: float = 5.0
    misses: int = 3
    update_s: float = 900.0  # for one server to load a folder
    recover_s: float = 900.0  # wait for a server to return when none is left, then give the turn up
    in_flight: str = "keep"


@dataclass(frozen=True)
class Weights:
    """A version of the policy and the folder, on the servers' side, that holds it."""

    folder: Path
    version: int


@dataclass(eq=False)
class Member:
    """One server and what is known of it."""

    server: SGLangServer
    able: Capabilities | None = None
    alive: bool = False  # it has the current weights and gets requests
    exact: bool = False  # it names the weights of every token
    failures: int = 0  # requests in a row
    silences: int = 0  # looks in a row
    load: int = 0  # tokens of the requests in flight
    sessions: int = 0  # that have their cache here


class Fleet:
    """The servers of a pool.  `news` is notified when one comes back; `counters` are the pool's."""

    def __init__(
        self,
        servers: Iterable[SGLangServer],
        vocab_size: int,
        options: PoolOptions,
        counters: Counter[str],
        news: asyncio.Condition,
    ) -> None:
        self.members = [Member(server) for server in servers]
        self.weights: Weights | None = None
        self.names: dict[str, int] = {}  # the servers' names of weights that were accepted on all of them
        self._options, self._counters, self._news = options, counters, news
        self._name = ""  # that of the current weights
        self._used: set[str] = set()
        self._lock = asyncio.Lock()  # held while weights or membership change
        self._prompt = [1 + 7 * i % (vocab_size - 1) for i in range(_PROMPT)]
        self._reference: np.ndarray | None = None  # log-probs of the known prompt under the current weights

    # ---------------------------------------------------------------------------------------- who is there

    @property
    def alive(self) -> list[Member]:
        return [m for m in self.members if m.alive]

    @property
    def context(self) -> int:
        """The largest prefix plus answer, in tokens, that every server serves."""
        return min(m.able.context for m in self.members if m.able)

    @property
    def mode(self) -> str:
        """How servers are paused: as `options.in_flight` says, where all of them can."""
        keep = self._options.in_flight == "keep" and all(m.exact for m in self.alive)
        return "retract" if keep else "abort"

    def lightest(self, avoid: Member | None) -> Member | None:
        """The server for a session without a home: the fewest tokens in flight, then the fewest sessions.

        Not the one that just failed, unless there is no other.
        """
        return min(self.alive, key=lambda m: (m is avoid, m.load, m.sessions), default=None)

    async def open(self, weights: Weights) -> None:
        """Meet the servers and give them all the same weights.  Raises EngineError when none answers."""
        met = await asyncio.gather(*map(self._meet, self.members), return_exceptions=True)
        problems = [error for error in met if isinstance(error, BaseException)]
        if unexpected := [error for error in problems if not isinstance(error, EngineError)]:
            raise unexpected[0]
        if not self.alive:
            raise EngineError("no server answers: " + "; ".join(map(str, problems)))
        for member in self.members:
            for text in member.able.shortcomings() if member.able else ["no answer; it may still come"]:
                log.warning("%s: %s", member.server, text)
        if all(m.able.updates for m in self.alive):
            return await self.update(weights)
        async with self._lock:  # weights that cannot be changed have to be believed
            self._name = self.alive[0].able.weight_version
            self._accept(weights, self._name, await self._probe(self._name))

    async def _meet(self, member: Member) -> None:
        member.able = await member.server.capabilities()
        member.alive = True

    # ---------------------------------------------------------------------------------------- liveness

    def answered(self, member: Member) -> None:
        member.failures = 0

    def failed(self, member: Member, error: Exception) -> None:
        """A request failed there."""
        member.failures += 1
        if member.failures >= self._options.misses:
            self.eject(member, error)

    def eject(self, member: Member, why: object) -> None:
        """No more requests for this server until it has proven itself."""
        if member.alive:
            member.alive = False
            self._counters["ejections"] += 1
            log.warning("%s gets no more requests: %s", member.server, why)

    async def watch(self) -> None:
        """Look at every server from time to time, for ever; each on its own, so that none waits for another."""
        await asyncio.gather(*map(self._watch, self.members))

    async def _watch(self, member: Member) -> None:
        while True:
            await asyncio.sleep(self._options.health_s)
            try:
                await self._look(member)
            except EngineError as error:
                member.silences += 1
                if member.silences >= self._options.misses:
                    self.eject(member, error)

    async def _look(self, member: Member) -> None:
        """Is it there, with the right weights?  A restarted server is there, with those it began with."""
        name = await member.server.weight_version(limit_s=max(self._options.health_s, 1.0))
        member.silences = 0
        if member.alive and name == self._name:
            return
        async with self._lock:
            if not member.alive:
                return await self._readmit(member)
            name = await member.server.weight_version()  # it may have been asked in the middle of an update
            if name != self._name:
                self.eject(member, f"it has the weights {name!r} instead of {self._name!r}")

    async def _readmit(self, member: Member) -> None:
        """Give an ejected server the current weights if it lacks them; see them at work; take it back.

        Raises EngineError and leaves it out.
        """
        member.able = await member.server.capabilities()
        if member.able.weight_version != self._name:
            await member.server.pause("abort", self._options.update_s)  # nobody waits for what it still does
            await self._load(member, self.weights, self._name)
        await member.server.resume()
        await self._prove(member)
        member.failures, member.alive = 0, True
        self._counters["returns"] += 1
        log.warning("%s is back", member.server)
        async with self._news:
            self._news.notify_all()

    # ---------------------------------------------------------------------------------------- weights

    async def settled(self) -> None:
        """Returns when no update is under way."""
        async with self._lock:
            pass

    async def pause(self) -> None:
        async with self._lock:
            await self._each(lambda m: m.server.pause(self.mode, self._options.update_s))

    async def resume(self) -> None:
        async with self._lock:
            await self._each(lambda m: m.server.resume())

    async def update(self, weights: Weights) -> None:
        """New weights on every living server, seen at work there, or on none.

        A server that does not answer is ejected; when none is left, the update waits up to `recover_s` for one
        to return.  Raises WeightUpdateError when one refuses, when they do not agree on the log-probs of the
        known prompt, or when none returns; then all have the weights of before.
        """
        while True:
            try:
                return await self._update(weights)
            except _NoServer as error:
                if self.weights is None:  # nobody can return to weights that there never were
                    raise
                await self._somebody(error)

    async def _somebody(self, error: Exception) -> None:
        """Returns when a server has come back.  Raises `error` after `recover_s` seconds."""
        try:
            async with asyncio.timeout(self._options.recover_s), self._news:
                await self._news.wait_for(lambda: self.alive)
        except TimeoutError:
            raise error from None

    async def _update(self, weights: Weights) -> None:
        async with self._lock:
            if fixed := [str(m.server) for m in self.alive if not m.able.updates]:
                raise WeightUpdateError(f"{', '.join(fixed)} cannot take new weights while running")
            name = self._new_name(weights.version)
            await self._each(lambda m: m.server.pause(self.mode, self._options.update_s))
            try:
                if refused := await self._each(lambda m: self._load(m, weights, name)):
                    raise WeightUpdateError("; ".join(map(str, refused)))
                await self._each(lambda m: m.server.resume())
                reference = await self._probe(name)
            except WeightUpdateError:
                await self._roll_back()
                raise
            self._accept(weights, name, reference)
            self._counters["updates"] += 1

    def _new_name(self, version: int) -> str:
        """The number of the version.  Never the same name twice: an update that failed may have left tokens."""
        name = str(version) if str(version) not in self._used else f"{version}-{len(self._used)}"
        self._used.add(name)
        return name

    def _accept(self, weights: Weights, name: str, reference: np.ndarray) -> None:
        self.weights, self._name, self._reference = weights, name, reference
        self.names[name] = weights.version

    async def _load(self, member: Member, weights: Weights, name: str) -> None:
        await member.server.update_weights(weights.folder, name, self._options.update_s)
        await member.server.flush_cache()  # done by the update; refused if a request still held old prefixes

    async def _probe(self, name: str) -> np.ndarray:
        """Log-probs of the known prompt that all living servers agree on.  Raises WeightUpdateError."""
        found: dict[Member, np.ndarray] = {}

        async def ask(member: Member) -> None:
            found[member] = await self._ask(member, name)

        if refused := await self._each(ask):
            raise WeightUpdateError("; ".join(map(str, refused)))
        if not found:
            raise _NoServer("no server is left")
        reference = next(iter(found.values()))
        if off := [
            f"{m.server}: {_OTHERS}" for m, logprobs in found.items() if not _agree(logprobs, reference)
        ]:
            raise WeightUpdateError("; ".join(off))
        return reference

    async def _prove(self, member: Member) -> None:
        """Raises EngineError when a server does not sample with the current weights."""
        if not _agree(await self._ask(member, self._name), self._reference):
            raise ServerRefused(f"{member.server}: {_OTHERS}")

    async def _ask(self, member: Member, name: str) -> np.ndarray:
        """A server's log-probs of the known prompt.  Raises EngineError.

        Like any other request it may fail without the server being dead, so it is asked several times.
        """
        for left in reversed(range(self._options.misses)):
            try:
                logprobs, reply = await member.server.prompt_logprobs(self._prompt, self._options.request_s)
                break
            except EngineError as error:
                if isinstance(error, ServerRefused) or not left:
                    raise
        member.exact = reply.exact
        if reply.versions != (name,) * len(reply.versions):
            raise ServerRefused(f"{member.server}: sampled with the weights {reply.versions}, not {name!r}")
        return logprobs

    async def _roll_back(self) -> None:
        """The weights of before on every living server, refusing ones too: a refusal may come after the load.

        A server that cannot go back is ejected.
        """
        if self.weights is None:
            return
        await self._each(lambda m: m.server.pause(self.mode, self._options.update_s))
        await self._each(lambda m: self._load(m, self.weights, self._name))
        await self._each(lambda m: m.server.resume())
        for member in self.alive:  # also those that refused to go back: perhaps they never left
            try:
                await self._prove(member)
            except EngineError as error:
                self.eject(member, error)

    async def _each(self, call: Callable[[Member], Awaitable[object]]) -> list[ServerRefused]:
        """Do something on all living servers at once; returns refusals.  Who does not answer is ejected."""
        members = self.alive
        results = await asyncio.gather(*map(call, members), return_exceptions=True)
        for member, result in zip(members, results, strict=True):
            if isinstance(result, EngineError) and not isinstance(result, ServerRefused):
                self.eject(member, result)
            elif isinstance(result, BaseException) and not isinstance(result, EngineError):
                raise result
        return [result for result in results if isinstance(result, ServerRefused)]


def _agree(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= _TOLERANCE)  # NaN does not
