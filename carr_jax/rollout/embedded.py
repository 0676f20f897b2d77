"""The engine inside the trainer's process: continuous batching of many episodes on one event loop.

One tick is one device call.  It admits waiting requests to slots, then either prefills a few slots by a chunk
or decodes all ready slots by a burst; between ticks the other coroutines run.  No threads, no clock: the same
calls in the same order give the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from carr_jax.models.config import ModelConfig
from carr_jax.records import Generation, InputError, Sampling
from carr_jax.rollout import decode as device
from carr_jax.rollout.engine import EngineError, WeightUpdateError
from carr_jax.weights import load_params

_WORTH_SHARING = 16  # tokens: below this, prefilling again costs no more than copying a slot or waiting
_YIELDS = 8  # turns of the event loop between ticks: enough for a local tool call and the next request


@dataclass(eq=False)
class _Request:
    """One turn in flight.  `tokens[:count]` are the prefix and what was sampled since."""

    session: str
    sampling: Sampling
    tokens: np.ndarray  # int32, room for the whole turn
    prompt: int
    future: asyncio.Future[Generation]
    count: int = 0
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def context(self) -> np.ndarray:
        """Everything that must be cached before the next token can be sampled: all but the last token."""
        return self.tokens[: self.count - 1]

    def finish(self, reason: str) -> None:
        ids = tuple(self.tokens[self.prompt : self.count].tolist())
        if not self.future.done():
            self.future.set_result(Generation(ids, tuple(self.logprobs), tuple(self.versions), reason))


class EmbeddedEngine:
    """`Engine` over a KV cache of `slots` rows of `max_length` tokens.

    A session keeps its slot between turns, so that only the new suffix is prefilled; with more sessions than
    slots, requests wait and idle sessions lose their slot, least recently used first.  A prefix that another
    slot has cached (siblings share the prompt) is copied.

    `prefill_rows` x `prefill_chunk` is the shape of a prefill (one row is best on a CPU, where the cost is
    linear), `decode_steps` the longest burst, `window` the smallest attended context, `dtype` the compute and
    cache type.

    Draws depend on seed and position only; the probabilities drawn from can differ in the last float bits with
    the window and with how a prefix was chunked, which changes a token only when two are tied to about 1e-6.
    """

    def __init__(
        self,
        params: Any,
        model_config: ModelConfig,
        *,
        slots: int = 64,
        max_length: int = 1024,
        prefill_rows: int = 1,
        prefill_chunk: int = 128,
        decode_steps: int = 16,
        window: int = 256,
        dtype: Any = jnp.float32,
        version: int = 0,
    ) -> None:
        if max_length > model_config.max_position:
            raise ValueError(
                f"max_length {max_length} exceeds max_position {model_config.max_position} of the model"
            )
        self._params, self._config, self._version = params, model_config, version
        self._max_length, self._window, self._steps = max_length, window, decode_steps
        self._rows, self._chunk = min(prefill_rows, slots), prefill_chunk
        self._capacity = max_length + max(decode_steps, prefill_chunk)  # a write may overhang
        self._cache = device.empty_cache(model_config, slots, self._capacity, dtype)
        self._ids = np.zeros((slots, max_length), np.int32)  # what the cache of each slot was computed from
        self._length = np.zeros(slots, np.int32)
        self._owner: list[str | None] = [None] * slots
        self._running: list[_Request | None] = [None] * slots
        self._used = [0] * slots  # tick of the last use
        self._waiting: list[_Request] = []
        self._paused = False
        self._driver: asyncio.Task[None] | None = None
        self.counters = {"ticks": 0, "prefilled": 0, "copied": 0, "generated": 0, "decode_steps": 0}

    # ------------------------------------------------------------------------------------ the Engine protocol

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Generation:
        """See `Engine.generate`."""
        request = self._request(ids, sampling, session)
        self._waiting.append(request)
        self._drive()
        try:
            return await request.future
        finally:
            self._drop(request)  # only finds something when the caller was cancelled

    async def release(self, session: str) -> None:
        """See `Engine.release`.  The tokens stay in the slot, for others to copy, until it is used again."""
        await self.abort(session)
        if session in self._owner:
            self._owner[self._owner.index(session)] = None

    async def update_weights(self, folder: Path, version: int) -> None:
        """See `Engine.update_weights`.  Running turns prefill their prefix again under the new weights."""
        try:
            params = load_params(folder, self._config)
        except (InputError, OSError) as error:
            raise WeightUpdateError(f"{folder}: {error}") from error
        self.set_params(jax.tree.map(jnp.asarray, params), version)

    def set_params(self, params: Any, version: int) -> None:
        """`update_weights` for parameters that are in this process's memory already."""
        self._params, self._version = params, version
        self._length[:] = 0

    async def health(self) -> dict[str, Any]:
        """See `Engine.health`; `counters` are totals since the start."""
        return {
            "status": "paused" if self._paused else "ok",
            "version": self._version,
            "seeded": True,
            "slots": len(self._owner),
            "active": sum(r is not None for r in self._running),
            "waiting": len(self._waiting),
            "counters": dict(self.counters),
        }

    async def abort(self, session: str) -> None:
        """See `Engine.abort`."""
        for request in self._in_flight():
            if request.session == session:
                self._drop(request)
                request.finish("abort")

    async def pause(self) -> None:
        """See `Engine.pause`."""
        self._paused = True

    async def resume(self) -> None:
        """See `Engine.resume`."""
        self._paused = False
        if self._in_flight():
            self._drive()

    # ---------------------------------------------------------------------------------------- requests

    def _request(self, ids: Sequence[int], sampling: Sampling, session: str) -> _Request:
        """Check a call and make its record."""
        prefix = np.asarray(ids, np.int32)
        if not 0 < len(prefix) < self._max_length:
            raise EngineError(f"session {session}: prefix of {len(prefix)} ids, need 1..{self._max_length - 1}")
        if prefix.min() < 0 or prefix.max() >= self._config.vocab_size:
            raise EngineError(f"session {session}: ids outside the vocabulary of {self._config.vocab_size}")
        if any(r.session == session for r in self._in_flight()):
            raise EngineError(f"session {session} already has a request in flight")
        room = min(sampling.max_tokens, self._max_length - len(prefix))
        tokens = np.concatenate([prefix, np.zeros(room, np.int32)])
        future = asyncio.get_running_loop().create_future()
        return _Request(session, sampling, tokens, len(prefix), future, count=len(prefix))

    def _in_flight(self) -> list[_Request]:
        return [r for r in self._running if r is not None] + self._waiting

    def _drop(self, request: _Request) -> None:
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._running[self._running.index(request)] = None

    # ---------------------------------------------------------------------------------------- the driver

    def _drive(self) -> None:
        """Start the background task unless it runs (it ends when nothing is in flight)."""
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await _let_others_run()
            while self._in_flight() and not self._paused:
                self._tick()
                await _let_others_run()
        except Exception as error:  # the device failed: tell every episode instead of leaving it to wait
            for request in self._in_flight():
                self._drop(request)
                if not request.future.done():
                    request.future.set_exception(EngineError(f"embedded engine failed: {error!r}"))

    def _tick(self) -> None:
        """One device call (and copies): prefill when it is worth a call, else decode."""
        self.counters["ticks"] += 1
        self._admit()
        running = [s for s, request in enumerate(self._running) if request is not None]
        behind = [s for s in running if self._length[s] < len(self._running[s].context)]
        behind = self._copy_prefixes(behind)
        ready = [s for s in running if s not in behind]
        if behind and (len(behind) >= self._rows or 4 * len(behind) >= len(ready)):
            self._prefill(self._without_siblings(behind)[: self._rows])
        elif ready:
            self._decode(ready)

    def _admit(self) -> None:
        """Give slots to waiting requests: sessions that own one first, then in order of arrival."""
        for request in list(self._waiting):
            if request.session in self._owner:
                self._start(request, self._owner.index(request.session))
        for request in list(self._waiting):
            free = [s for s, owner in enumerate(self._owner) if owner is None]
            idle = [s for s, running in enumerate(self._running) if running is None]
            if not idle:
                return
            self._start(request, free[0] if free else min(idle, key=self._used.__getitem__))

    def _start(self, request: _Request, slot: int) -> None:
        self._waiting.remove(request)
        self._owner[slot], self._running[slot] = request.session, request
        self._length[slot] = self._common(request.context)[slot]
        self._used[slot] = self.counters["ticks"]

    # ---------------------------------------------------------------------------------------- prefill

    def _common(self, context: np.ndarray) -> np.ndarray:
        """How many leading tokens of `context` each slot has cached: int [slots]."""
        n = len(context)
        equal = (self._ids[:, :n] == context) & (np.arange(n) < self._length[:, None])
        return np.where(equal.all(axis=1), n, np.argmin(equal, axis=1) if n else 0)

    def _copy_prefixes(self, behind: list[int]) -> list[int]:
        """Copy longer prefixes from other slots; returns the slots that still are behind."""
        for slot in behind:
            context = self._running[slot].context
            common = self._common(context)
            best = int(np.argmax(common))
            if common[best] - self._length[slot] >= _WORTH_SHARING:
                self.counters["copied"] += int(common[best] - self._length[slot])
                self._cache = device.copy_slot(self._cache, best, slot)
                self._remember(slot, context, int(common[best]))
        return [s for s in behind if self._length[s] < len(self._running[s].context)]

    def _without_siblings(self, behind: list[int]) -> list[int]:
        """Leave out slots that can soon copy what an earlier one of the list is about to prefill."""
        chosen: list[int] = []
        for slot in behind:
            context = self._running[slot].context
            shared = [_common_length(context, self._running[other].context) for other in chosen]
            if max(shared, default=0) - self._length[slot] < _WORTH_SHARING:
                chosen.append(slot)
        return chosen

    def _prefill(self, slots: list[int]) -> None:
        """Append the next chunk of each slot's context to its cache."""
        rows, tokens = np.zeros(self._rows, np.int32), np.zeros((self._rows, self._chunk), np.int32)
        length, count = np.zeros(self._rows, np.int32), np.zeros(self._rows, np.int32)
        for row, slot in enumerate(slots):
            done = self._length[slot]
            chunk = self._running[slot].context[done : done + self._chunk]
            rows[row], tokens[row, : len(chunk)], length[row], count[row] = slot, chunk, done, len(chunk)
        shape = {"config": self._config, "window": self._bucket(length.max())}
        inputs = (rows, tokens, length, count, len(slots))
        self._cache = device.prefill(self._params, self._cache, *inputs, **shape)
        for row, slot in enumerate(slots):
            self._remember(slot, self._running[slot].context, int(length[row] + count[row]))
        self.counters["prefilled"] += int(count.sum())

    def _remember(self, slot: int, context: np.ndarray, length: int) -> None:
        """The cache of `slot` now holds `context[:length]`."""
        self._ids[slot, :length] = context[:length]
        self._length[slot] = length

    # ---------------------------------------------------------------------------------------- decode

    def _decode(self, ready: list[int]) -> None:
        """Sample a burst in the ready slots and hand out what finished."""
        window = self._bucket(self._length[ready].max())
        shape = {"config": self._config, "window": window, "steps": self._steps}
        self._cache, *out = device.decode(self._params, self._cache, self._slots(ready), **shape)
        ids, logprobs, counts = map(np.asarray, out)
        self.counters["decode_steps"] += int(counts.max())
        self.counters["generated"] += int(counts.sum())
        for slot in ready:
            n = int(counts[slot])
            self._append(slot, ids[:n, slot], logprobs[:n, slot])

    def _slots(self, ready: list[int]) -> device.Slots:
        """The requests of the ready slots as arrays; the others stand still."""
        n = len(self._owner)
        requests = [(slot, self._running[slot]) for slot in ready]
        stops = np.full((n, _round_up(max(len(r.sampling.stop_ids) for _, r in requests), 4)), -1, np.int32)
        out = device.Slots(
            token=np.zeros(n, np.int32),
            length=self._length.copy(),
            active=np.zeros(n, bool),
            remaining=np.zeros(n, np.int32),
            stop_ids=stops,
            temperature=np.ones(n, np.float32),
            seed=np.zeros((n, 2), np.uint32),
        )
        for slot, r in requests:
            out.token[slot], out.active[slot] = r.tokens[r.count - 1], True
            out.remaining[slot] = len(r.tokens) - r.count
            out.stop_ids[slot, : len(r.sampling.stop_ids)] = r.sampling.stop_ids
            out.temperature[slot] = r.sampling.temperature
            out.seed[slot] = (r.sampling.seed >> 32) & 0xFFFFFFFF, r.sampling.seed & 0xFFFFFFFF
        return out

    def _append(self, slot: int, ids: np.ndarray, logprobs: np.ndarray) -> None:
        """Record sampled tokens; all but the last are cached."""
        request = self._running[slot]
        request.tokens[request.count : request.count + len(ids)] = ids
        request.count += len(ids)
        request.logprobs += logprobs.tolist()
        request.versions += [self._version] * len(ids)
        self._remember(slot, request.context, len(request.context))
        self._used[slot] = self.counters["ticks"]
        stopped = int(ids[-1]) in request.sampling.stop_ids
        if stopped or request.count == len(request.tokens):
            self._running[slot] = None
            request.finish("stop" if stopped else "length")

    def _bucket(self, length: int) -> int:
        """The static window for contexts up to `length`: `window` doubled as needed, at last the whole slot.

        Part of a slot has to be copied out before it is read, so that a window beyond half of it costs more
        than it saves; and few sizes mean few compilations.
        """
        window = self._window
        while window < length:
            window *= 2
        return window if 2 * window <= self._capacity else self._capacity


def _common_length(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _round_up(n: int, multiple: int) -> int:
    return max(-(-n // multiple), 1) * multiple


async def _let_others_run() -> None:
    for _ in range(_YIELDS):
        await asyncio.sleep(0)
