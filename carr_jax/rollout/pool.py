"""`Engine` over several SGLang servers: turns survive their server, no token of unknown origin gets through.

A turn is a growing prefix.  Whatever ends an attempt early (a weight update, a server that died, a broken
answer), the next one goes on from the tokens that are kept; sampling a piece again is harmless, because only
what came back is ever used.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from carr_jax.models.config import from_hf_config
from carr_jax.records import Generation, Sampling
from carr_jax.rollout.engine import EngineError
from carr_jax.rollout.fleet import Fleet, Member, PoolOptions, Weights
from carr_jax.rollout.messages import Reply, ServerRefused, ServerUnreachable
from carr_jax.rollout.sglang import SGLangServer, open_http
from carr_jax.rollout.turn import Turn

_ABORT_S = 10.0  # what a server may still take when its request was aborted
COUNTERS = (
    "requests retries ejections returns updates resumed_turns tokens_kept tokens_lost "
    "prompt_tokens cached_tokens generated"
).split()


class SGLangPool:
    """`async with SGLangPool(urls, folder, version) as engine:` gives all servers the policy in `folder`.

    Later turns of a session go to the server that holds its prefix, as long as it is well.  `counters` are
    totals: requests and retries (attempts that failed: what they had sampled is lost with them), ejections and
    returns of servers, updates, resumed_turns and tokens_kept (over weight updates), tokens_lost (sampled with
    weights that were refused afterwards), prompt_tokens of which cached_tokens were not computed, generated.
    """

    def __init__(
        self, urls: Sequence[str], folder: Path, version: int = 0, options: PoolOptions = PoolOptions()
    ) -> None:
        self._urls, self._weights, self._options = tuple(urls), Weights(folder, version), options
        self._model = from_hf_config(folder)
        self.counters = Counter(dict.fromkeys(COUNTERS, 0))
        self._told = Counter(self.counters)
        self._turns: dict[str, Turn] = {}
        self._homes: dict[str, Member] = {}
        self._rows: dict[str, int] = {}  # of routes that a session was given
        self._holds: set[str] = set()  # reasons why no request may start
        self._pauses = 0  # how often there was one
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._id = uuid.uuid4().hex[:8]  # a server refuses an id twice, and aborts all that begin as it is told
        self._numbers = itertools.count()
        self._http: aiohttp.ClientSession
        self.fleet: Fleet

    async def __aenter__(self) -> SGLangPool:
        self._http = open_http()
        servers = [SGLangServer(url, self._http) for url in self._urls]
        self.fleet = Fleet(servers, self._model.vocab_size, self._options, self.counters, self._news)
        try:
            await self.fleet.open(self._weights)
        except BaseException:
            await self._http.close()
            raise
        self._in_background(self.fleet.watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    def news(self) -> dict[str, int]:
        """What `counters` gained since the last call."""
        gained = {name: self.counters[name] - self._told[name] for name in COUNTERS}
        self._told = Counter(self.counters)
        return gained

    # ------------------------------------------------------------------------------- the Engine protocol

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Generation:
        """See `Engine.generate`."""
        turn = self._turn(ids, sampling, session)
        self._turns[session] = turn
        try:
            while not turn.finish:
                await self._attempt(turn)
        finally:
            del self._turns[session]
            if turn.member is not None:  # the caller was cancelled
                self._in_background(self._abort_at(turn.member, turn.rid))
        self._rows[session] = turn.rows
        return turn.generation()

    async def release(self, session: str) -> None:
        """See `Engine.release`."""
        await self.abort(session)
        self._rows.pop(session, None)
        if home := self._homes.pop(session, None):
            home.sessions -= 1

    async def update_weights(self, folder: Path, version: int) -> None:
        """See `Engine.update_weights`.  The folder of the version before must still be there."""
        self._hold("update")
        try:
            await self.fleet.update(Weights(folder, version))
            if len(self._holds) > 1:  # the servers were started to be probed
                await self.fleet.pause()
        finally:
            self._holds.discard("update")
            await self._tell()

    async def health(self) -> dict[str, Any]:
        """See `Engine.health`; status "down" when no server answers."""
        fleet = self.fleet
        active = sum(turn.member is not None for turn in self._turns.values())
        return {
            "status": "down" if not fleet.alive else "paused" if self._holds else "ok",
            "version": fleet.weights.version,
            "seeded": all(m.able.seeds for m in fleet.members if m.able),
            "active": active,
            "waiting": len(self._turns) - active,
            "servers": {m.server.url: {"alive": m.alive, "sessions": m.sessions} for m in fleet.members},
            "counters": dict(self.counters),
        }

    async def abort(self, session: str) -> None:
        """See `Engine.abort`.  Asked again until it is done: the request may still be on its way there."""
        turn = self._turns.get(session)
        if turn is None:
            return
        turn.aborted = True
        await self._tell()
        while self._turns.get(session) is turn:
            if turn.member is not None:
                await self._abort_at(turn.member, turn.rid)
            await asyncio.sleep(0.02)

    async def pause(self) -> None:
        """See `Engine.pause`."""
        self._hold("pause")
        await self.fleet.pause()

    async def resume(self) -> None:
        """See `Engine.resume`."""
        self._holds.discard("pause")
        if not self._holds:
            await self.fleet.resume()
        await self._tell()

    # ------------------------------------------------------------------------------- one turn

    @property
    def context(self) -> int:
        """The longest prefix plus answer, in tokens."""
        return self.fleet.context

    def _turn(self, ids: Sequence[int], sampling: Sampling, session: str) -> Turn:
        """Check a call and make its record."""
        prefix, vocab_size = np.array(ids, np.int64), self._model.vocab_size
        if not 0 < len(prefix) < self.context:
            raise EngineError(f"session {session}: prefix of {len(prefix)} ids, need 1..{self.context - 1}")
        if prefix.min() < 0 or prefix.max() >= vocab_size:
            raise EngineError(f"session {session}: ids outside the vocabulary of {vocab_size}")
        if session in self._turns:
            raise EngineError(f"session {session} already has a request in flight")
        room = min(sampling.max_tokens, self.context - len(prefix))
        sampling = dataclasses.replace(sampling, max_tokens=room)
        known = self._rows.get(session, 0)
        return Turn(session, prefix, sampling, known if known < len(prefix) else 0)

    async def _attempt(self, turn: Turn) -> None:
        """Send what is left of a turn to a server and take what comes back."""
        member = await self._a_server(turn)
        if member is None:
            turn.finish = "abort"
            return
        turn.member, turn.rid = member, f"{self._id}-{next(self._numbers)}:{turn.session}"
        began, pauses, tokens = self.fleet.weights.version, self._pauses, turn.tokens
        member.load += tokens
        self.counters["requests"] += 1
        try:
            reply = await self._ask(turn, member)
        except ServerRefused:
            turn.member = None
            raise
        except EngineError as error:
            self._failed(turn, member, error)
        else:
            await self._take(turn, member, reply, began, pauses)
        finally:
            member.load -= tokens
        turn.member = None
        if turn.failed_at is not None and not turn.finish:
            wait = self._options.backoff_s * 2 ** min(turn.failures - 1, 6)
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))

    async def _a_server(self, turn: Turn) -> Member | None:
        """Where the turn goes next, when it may; None when it was aborted meanwhile.

        Raises EngineError when no server is there for `recover_s`.
        """
        while not turn.aborted:
            if self._holds:
                await self._until(lambda: turn.aborted or not self._holds, None)
            elif member := self._home(turn):
                return member
            else:
                await self._until(
                    lambda: turn.aborted or self._holds or self.fleet.alive, self._options.recover_s
                )
        return None

    def _home(self, turn: Turn) -> Member | None:
        """The server that has the session's cache, or a new one."""
        home = self._homes.get(turn.session)
        if home is not None and home.alive and home is not turn.failed_at:
            return home
        if (member := self.fleet.lightest(turn.failed_at)) is None:
            return None
        if home is not None:
            home.sessions -= 1
        member.sessions += 1
        self._homes[turn.session] = member
        return member

    async def _ask(self, turn: Turn, member: Member) -> Reply:
        """One request, bounded in time."""
        ids, options = turn.so_far, self._options
        sampling = dataclasses.replace(turn.sampling, max_tokens=turn.left)
        routes = turn.route_shape(self._model) if member.able.routes else None
        limit = options.request_s + options.prefill_s * len(ids) + options.decode_s * turn.left
        call = member.server.generate(ids, sampling, turn.rid, member.able.seeds, routes)
        return await self._within(turn, member, call, limit)

    async def _within(self, turn: Turn, member: Member, call: Coroutine[Any, Any, Reply], left: float) -> Reply:
        """The result of `call`, unless its server is given up or it takes `left` seconds without pauses."""
        loop, task = asyncio.get_running_loop(), asyncio.create_task(call)
        try:
            while True:
                start = loop.time()
                done, _ = await asyncio.wait({task}, timeout=min(self._options.health_s, left))
                if done:
                    return task.result()
                if not member.alive:
                    raise ServerUnreachable(f"{member.server} was given up")
                left = min(left, _ABORT_S) if turn.aborted else left
                left -= 0 if self._holds else loop.time() - start
                if left <= 0:
                    self._in_background(self._abort_at(member, turn.rid))
                    raise ServerUnreachable(f"{member.server}: no answer in time to {turn.rid}")
        finally:
            task.cancel()

    def _failed(self, turn: Turn, member: Member, error: EngineError) -> None:
        """An attempt came to nothing.  Raises EngineError when it was one too many."""
        self.fleet.failed(member, error)
        self.counters["retries"] += 1
        turn.failures += 1
        turn.failed_at = member
        if turn.failures >= self._options.attempts and not turn.aborted:
            turn.member = None
            said = f"session {turn.session}: {turn.failures} attempts failed, the last: {error}"
            raise EngineError(said) from error

    async def _take(self, turn: Turn, member: Member, reply: Reply, began: int, pauses: int) -> None:
        """Add what came back to the turn, as far as its origin is known."""
        names = self.fleet.names
        if any(name not in names for name in reply.versions):
            await self.fleet.settled()  # the update that they come from may succeed yet
        known = list(itertools.takewhile(names.__contains__, reply.versions))
        n = len(known)
        versions = [names[name] for name in known]
        if not reply.exact:  # the name at the end; in an update, earlier tokens may be older
            versions = [min(began, version) for version in versions]
        turn.add(reply, n, versions)
        self._count(turn, reply, versions)
        if n < len(reply.ids):
            self.counters["tokens_lost"] += len(reply.ids) - n
            return self._failed(turn, member, EngineError(f"{member.server}: weights {reply.versions[n]!r}"))
        turn.end(reply.finish)
        if reply.finish == "abort" and not turn.finish and self._pauses == pauses:
            return self._failed(turn, member, EngineError(f"{member.server} aborted {turn.rid} unasked"))
        self.fleet.answered(member)
        turn.failed_at = None

    def _count(self, turn: Turn, reply: Reply, versions: Sequence[int]) -> None:
        resumed = reply.finish == "abort" and not turn.aborted
        kept = len(versions) if resumed else sum(version != versions[-1] for version in versions)
        self.counters["resumed_turns"] += resumed
        self.counters["tokens_kept"] += kept
        self.counters["generated"] += len(versions)
        self.counters["prompt_tokens"] += turn.tokens - len(versions)
        self.counters["cached_tokens"] += reply.cached_tokens

    # ------------------------------------------------------------------------------- helpers

    def _hold(self, reason: str) -> None:
        """No new request starts until the reason is gone; those in flight may come back unfinished."""
        self._holds.add(reason)
        self._pauses += 1

    async def _abort_at(self, member: Member, rid: str) -> None:
        """Ask a server to end a request; one that is dead has ended it (SG-03)."""
        with contextlib.suppress(EngineError):
            await member.server.abort(rid)

    async def _until(self, holds: Callable[[], object], limit_s: float | None) -> None:
        """Wait for news that make `holds` true.  Raises EngineError after `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s), self._news:
                await self._news.wait_for(holds)
        except TimeoutError as error:
            raise EngineError(f"no server has answered for {limit_s:.0f} s") from error

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
