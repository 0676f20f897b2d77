"""The device side of the embedded engine: a KV cache of slots, prefill of chunks, decode of all slots.

Dimension letters: L layers, B slots, R prefill rows, C chunk, K key heads, D head_dim, T max_length, W window
(the part of T that is read, a static multiple so that short contexts are cheap), V vocabulary.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from carr_jax.models.attention import Past
from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import extend, head_matrix


class Cache(NamedTuple):
    """Keys and values of all slots; how many tokens of a slot are real is known on the host."""

    k_LxBxKxDxT: jax.Array
    v_LxBxKxTxD: jax.Array


class Slots(NamedTuple):
    """Per slot, what a decode needs.  `token` is sampled but not cached; it stands at position `length`."""

    token: jax.Array  # int32 [B]
    length: jax.Array  # int32 [B], cached tokens
    active: jax.Array  # bool [B]
    remaining: jax.Array  # int32 [B], tokens that may still be sampled
    stop_ids: jax.Array  # int32 [B, n], padded with -1
    temperature: jax.Array  # float32 [B]
    seed: jax.Array  # uint32 [B, 2]


def empty_cache(config: ModelConfig, slots: int, max_length: int, dtype: jnp.dtype) -> Cache:
    """A zeroed cache."""
    heads, d = (config.num_layers, slots, config.num_kv_heads), config.head_dim
    return Cache(jnp.zeros((*heads, d, max_length), dtype), jnp.zeros((*heads, max_length, d), dtype))


@functools.partial(jax.jit, donate_argnums=0)
def copy_slot(cache: Cache, source: jax.Array, target: jax.Array) -> Cache:
    """Give slot `target` everything that slot `source` has cached."""
    return Cache(*(x.at[:, target].set(x[:, source]) for x in cache))


@functools.partial(jax.jit, static_argnames=("config", "window"), donate_argnames="cache")
def prefill(
    params: Any,
    cache: Cache,
    slots_R: jax.Array,
    tokens_RxC: jax.Array,
    length_R: jax.Array,
    count_R: jax.Array,
    *,
    config: ModelConfig,
    window: int,
) -> Cache:
    """Append `count` tokens of each row to the cache of its slot, after `length` cached ones.

    Unused rows have count 0.  `window` must cover every `length`.
    """
    offset = jnp.arange(tokens_RxC.shape[1])
    valid = offset < count_R[:, None]
    positions = length_R[:, None] + offset
    old_k, old_v = cache
    past = Past(old_k[:, slots_R, :, :, :window], old_v[:, slots_R, :, :window], length_R)
    _, (k, v) = extend(params, config, tokens_RxC, positions, valid, past, dtype=old_k.dtype)
    where = jnp.where(valid, positions, old_k.shape[-1])  # out of range: the write is dropped
    rows = slots_R[:, None]
    return Cache(
        old_k.at[:, rows, :, :, where].set(k.transpose(1, 4, 0, 2, 3), mode="drop"),
        old_v.at[:, rows, :, where].set(v.transpose(1, 3, 0, 2, 4), mode="drop"),
    )


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


@functools.partial(jax.jit, static_argnames=("config", "window", "steps", "vocab"), donate_argnames="cache")
def decode(
    params: Any, cache: Cache, slots: Slots, *, config: ModelConfig, window: int, steps: int, vocab: int
) -> tuple[Cache, jax.Array, jax.Array, jax.Array]:
    """Sample up to `steps` tokens in every active slot; returns cache, ids, log-probs [steps, B], counts [B].

    Stops early once an eighth of the slots (at least one) has finished, so that their episodes can go on while
    the rest loses little.  Ids at or above `vocab` are never sampled.  `window` must cover length + steps.
    The window is copied out of the cache and back once per call, never per step.
    """
    b = jnp.arange(slots.token.shape[0])
    head = head_matrix(params, config)[:, :vocab]
    finished_enough = jnp.maximum(slots.active.sum() // 8, 1)

    def go_on(state):
        step, _, now, *_ = state
        return (step < steps) & ((slots.active & ~now.active).sum() < finished_enough)

    def one_step(state):
        step, (k, v), now, ids, logprobs, counts = state
        past = Past(k, v, now.length)
        inputs = (now.token[:, None], now.length[:, None], now.active[:, None])
        hidden, (new_k, new_v) = extend(params, config, *inputs, past, dtype=k.dtype)
        k = k.at[:, b, :, :, now.length].set(new_k[..., 0].swapaxes(0, 1), mode="drop")
        v = v.at[:, b, :, now.length].set(new_v[..., 0, :].swapaxes(0, 1), mode="drop")
        logits = jnp.matmul(hidden[:, 0].astype(jnp.float32), head, precision=jax.lax.Precision.HIGHEST)
        token, logprob = sample(logits, now.temperature, now.seed, now.length + 1)
        ids, logprobs = ids.at[step].set(token), logprobs.at[step].set(logprob)
        return step + 1, Cache(k, v), _advance(now, token), ids, logprobs, counts + now.active

    small = Cache(cache.k_LxBxKxDxT[..., :window], cache.v_LxBxKxTxD[..., :window, :])
    out = (steps, slots.token.shape[0])
    state = (0, small, slots, jnp.zeros(out, jnp.int32), jnp.zeros(out), jnp.zeros(out[1], jnp.int32))
    _, small, _, ids, logprobs, counts = jax.lax.while_loop(go_on, one_step, state)
    written = (jax.lax.dynamic_update_slice(x, y, (0,) * 5) for x, y in zip(cache, small, strict=True))
    return Cache(*written), ids, logprobs, counts


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
