"""The device side of the embedded engine: a KV cache of slots, prefill of chunks, decode of all slots.

Dimension letters: B slots, R prefill rows, C chunk, K key heads, D head_dim, T capacity of a slot.
The window is the part of T that is read; it is static, so that short contexts are cheap.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from carr_jax.models.attention import Past
from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import extend, head_matrix

# For each layer the keys [B, K, D, T] and values [B, K, T, D] of all slots.  How many tokens of a slot are real
# is known on the host; what stands behind them is garbage, and may be overwritten with garbage.  One array per
# layer: a slice of a stacked array would be copied before it is multiplied.
Cache = list[tuple[jax.Array, jax.Array]]


class Slots(NamedTuple):
    """Per slot, what a decode needs.  `token` is sampled but not cached; it stands at position `length`."""

    token: jax.Array  # int32 [B]
    length: jax.Array  # int32 [B], cached tokens
    active: jax.Array  # bool [B]
    remaining: jax.Array  # int32 [B], tokens that may still be sampled
    stop_ids: jax.Array  # int32 [B, n], padded with -1
    temperature: jax.Array  # float32 [B]
    seed: jax.Array  # uint32 [B, 2]


def empty_cache(config: ModelConfig, slots: int, capacity: int, dtype: jnp.dtype) -> Cache:
    """A zeroed cache of `capacity` tokens per slot."""
    k, v = (slots, config.num_kv_heads, config.head_dim, capacity), (slots, config.num_kv_heads, capacity)
    return [(jnp.zeros(k, dtype), jnp.zeros((*v, config.head_dim), dtype)) for _ in range(config.num_layers)]


@functools.partial(jax.jit, donate_argnums=0)
def copy_slot(cache: Cache, source: jax.Array, target: jax.Array) -> Cache:
    """Give slot `target` everything that slot `source` has cached."""
    return jax.tree.map(lambda x: x.at[target].set(x[source]), cache)


def _write(cache: Cache, new: Cache, slots_R: jax.Array, length_R: jax.Array, rows: jax.Array) -> Cache:
    """Write the first `rows` rows of `new` (C tokens each) to their slots, from `length` on.

    Row by row, as one contiguous block: a scatter by token is a hundred times slower on a CPU.  The capacity
    must exceed every length by C, because an update that does not fit would be shifted back over real tokens.
    """

    def one(row, cache):
        slot, at = slots_R[row], length_R[row]
        return [
            (
                jax.lax.dynamic_update_slice(k, new_k[row][None], (slot, 0, 0, at)),
                jax.lax.dynamic_update_slice(v, new_v[row][None], (slot, 0, at, 0)),
            )
            for (k, v), (new_k, new_v) in zip(cache, new, strict=True)
        ]

    return jax.lax.fori_loop(0, rows, one, cache)


@functools.partial(jax.jit, static_argnames=("config", "window"), donate_argnames="cache")
def prefill(
    params: Any,
    cache: Cache,
    slots_R: jax.Array,
    tokens_RxC: jax.Array,
    length_R: jax.Array,
    count_R: jax.Array,
    rows: jax.Array,
    *,
    config: ModelConfig,
    window: int,
) -> Cache:
    """Append `count` tokens of each of the first `rows` rows to its slot, after `length` cached ones.

    `window` must cover every `length`, and the capacity every length + C.
    """
    offset = jnp.arange(tokens_RxC.shape[1])
    past = [(Past(k[slots_R, ..., :window], v[slots_R, :, :window], length_R),) for k, v in cache]
    positions, valid = length_R[:, None] + offset, offset < count_R[:, None]
    _, new = extend(params, config, tokens_RxC, positions, valid, past, dtype=cache[0][0].dtype)
    return _write(cache, new, slots_R, length_R, rows)


def sample(
    logits_BxV: jax.Array, temperature_B: jax.Array, seed_Bx2: jax.Array, position_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Draw one token per row from softmax(logits / T): ids int32 [B] and their float32 log-probs [B].

    The key is fold_in(seed, position): a draw depends on nothing else, least of all on slot or batch.
    """
    logprobs = jax.nn.log_softmax(logits_BxV.astype(jnp.float32) / temperature_B[:, None], axis=-1)

    def draw(seed, position, row):
        return jax.random.categorical(jax.random.fold_in(jax.random.wrap_key_data(seed), position), row)

    ids = jax.vmap(draw)(seed_Bx2, position_B, logprobs).astype(jnp.int32)
    return ids, jnp.take_along_axis(logprobs, ids[:, None], axis=-1)[:, 0]


@functools.partial(jax.jit, static_argnames=("config", "window", "steps"), donate_argnames="cache")
def decode(
    params: Any, cache: Cache, slots: Slots, *, config: ModelConfig, window: int, steps: int
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """Sample up to `steps` tokens in every active slot; returns cache, ids, log-probs [steps, B], counts [B].

    Stops early once an eighth of the slots (at least one) has finished, so that their episodes can go on while
    the rest loses little.  `window` must cover every length, and the capacity every length + steps.  The steps
    only read the cache: their own keys and values are kept in small blocks beside it, which are written to it
    once at the end.
    """
    size = slots.token.shape[0]
    head = head_matrix(params, config)
    finished_enough = jnp.maximum(slots.active.sum() // 8, 1)
    windows = [(k[..., :window], v[:, :, :window]) for k, v in cache]
    recent = empty_cache(config, size, steps, cache[0][0].dtype)

    def go_on(state):
        step, _, now, *_ = state
        return (step < steps) & ((slots.active & ~now.active).sum() < finished_enough)

    def one_step(state):
        step, recent, now, ids, logprobs, counts = state
        past = [
            (Past(*old, slots.length), Past(*new, jnp.full(size, step)))
            for old, new in zip(windows, recent, strict=True)
        ]
        inputs = (now.token[:, None], now.length[:, None], now.active[:, None])
        hidden, new = extend(params, config, *inputs, past, dtype=cache[0][0].dtype)
        recent = _write_step(recent, new, step)
        logits = jnp.matmul(hidden[:, 0].astype(jnp.float32), head, precision=jax.lax.Precision.HIGHEST)
        token, logprob = sample(logits, now.temperature, now.seed, now.length + 1)
        ids, logprobs = ids.at[step].set(token), logprobs.at[step].set(logprob)
        return step + 1, recent, _advance(now, token), ids, logprobs, counts + now.active

    out = (steps, size)
    state = (0, recent, slots, jnp.zeros(out, jnp.int32), jnp.zeros(out), jnp.zeros(size, jnp.int32))
    _, recent, _, ids, logprobs, counts = jax.lax.while_loop(go_on, one_step, state)
    return _write(cache, recent, jnp.arange(size), slots.length, size), ids, logprobs, counts


def _write_step(recent: Cache, new: Cache, step: jax.Array) -> Cache:
    """Put the keys and values of one step, [B, K, D, 1] and [B, K, 1, D], at index `step` of all slots."""
    return [
        (
            jax.lax.dynamic_update_slice_in_dim(k, new_k, step, axis=3),
            jax.lax.dynamic_update_slice_in_dim(v, new_v, step, axis=2),
        )
        for (k, v), (new_k, new_v) in zip(recent, new, strict=True)
    ]


def _advance(now: Slots, token: jax.Array) -> Slots:
    """The slots after `token` was sampled: only active ones move on."""
    stopped = (token[:, None] == now.stop_ids).any(axis=-1)
    remaining = now.remaining - now.active
    return now._replace(
        token=jnp.where(now.active, token, now.token),
        length=now.length + now.active,
        active=now.active & ~stopped & (remaining > 0),
        remaining=remaining,
    )
