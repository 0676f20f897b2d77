"""Grouped-query attention: one function for training (packed rows) and decoding (a cache and a chunk).

Dimension letters: B rows, S queries, T cached keys, H query heads, K key heads, G = H / K, D head_dim.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Finite, so that a row of padding without any visible key gives a uniform softmax instead of NaN (P17).
_HIDDEN = -1e30
_QUERY_BLOCK = 128


class Past(NamedTuple):
    """Keys (after norm and rotation) and values of earlier tokens; only the first `length_B` of T are real.

    The order of the axes makes both products of a decode step plain matmuls over the cache as it lies in
    memory; with [B, T, K, D] they are 10 times slower on a CPU.
    """

    k_BxKxDxT: jax.Array
    v_BxKxTxD: jax.Array
    length_B: jax.Array


def attention(
    q_BxSxHxD: jax.Array,
    k_BxKxDxS: jax.Array,
    v_BxKxSxD: jax.Array,
    positions_BxS: jax.Array,
    segments_BxS: jax.Array,
    past: Sequence[Past] = (),
) -> jax.Array:
    """softmax(q k^T / sqrt(D)) v with a float32 softmax; returns [B, S, H, D] in q's dtype.

    A query sees the keys of its own segment at positions up to its own; segment 0 is padding and is seen by
    nobody.  Within a segment, positions grow with the index.  Every query also sees the first `length_B` keys
    of each `past`.  Rows of padding give finite values without meaning.
    """
    length = q_BxSxHxD.shape[1]
    if past or length <= _QUERY_BLOCK:
        return _attend(q_BxSxHxD, k_BxKxDxS, v_BxKxSxD, visible(positions_BxS, segments_BxS), past)
    # Keys behind a block of queries are hidden from all of it: they are neither computed nor stored.
    seen = visible(positions_BxS, segments_BxS)
    blocks = []
    for start in range(0, length, _QUERY_BLOCK):
        end = min(start + _QUERY_BLOCK, length)
        mask = seen[:, start:end, :end]
        blocks.append(_attend(q_BxSxHxD[:, start:end], k_BxKxDxS[..., :end], v_BxKxSxD[:, :, :end], mask))
    return jnp.concatenate(blocks, axis=1)


def _attend(q_BxSxHxD, k_BxKxDxT, v_BxKxTxD, mask_BxSxT, past: Sequence[Past] = ()) -> jax.Array:
    """Attention of a block of queries to the keys of the row, by mask, and to the cached ones."""
    b, s, h, d = q_BxSxHxD.shape
    kv_heads = k_BxKxDxT.shape[1]
    groups = h // kv_heads
    # [B, K, S * G, D]: the queries that share a key head are one matrix, so that both products are plain
    # batched matmuls over the cache as it lies in memory.
    q = q_BxSxHxD.reshape(b, s, kv_heads, groups, d).swapaxes(1, 2).reshape(b, kv_heads, s * groups, d)
    blocks = [(_scores(q, k_BxKxDxT, jnp.repeat(mask_BxSxT, groups, axis=1)), v_BxKxTxD)]
    for cached in past:
        real = jnp.arange(cached.k_BxKxDxT.shape[3]) < cached.length_B[:, None]
        blocks.append((_scores(q, cached.k_BxKxDxT, real[:, None, :]), cached.v_BxKxTxD))
    out = _softmax_mean(blocks).astype(q.dtype)
    return out.reshape(b, kv_heads, s, groups, d).swapaxes(1, 2).reshape(b, s, h, d)


def visible(positions_BxS: jax.Array, segments_BxS: jax.Array) -> jax.Array:
    """bool [B, S, S]: may query s see key t (causal, same segment, not padding)."""
    causal = positions_BxS[:, :, None] >= positions_BxS[:, None, :]
    same = segments_BxS[:, :, None] == segments_BxS[:, None, :]
    return causal & same & (segments_BxS[:, None, :] != 0)


def _scores(q_BxKxQxD: jax.Array, k_BxKxDxT: jax.Array, mask_BxQxT: jax.Array) -> jax.Array:
    """Scaled scores [B, K, Q, T] in float32, hidden keys at a large negative value."""
    scores = jnp.einsum("bkqd,bkdt->bkqt", q_BxKxQxD, k_BxKxDxT, preferred_element_type=jnp.float32)
    return jnp.where(mask_BxQxT[:, None], scores * q_BxKxQxD.shape[-1] ** -0.5, _HIDDEN)


def _softmax_mean(blocks: list[tuple[jax.Array, jax.Array]]) -> jax.Array:
    """Mean of the values under one softmax over the scores of all blocks (scores, values); float32.

    The blocks share maximum and normaliser but are never concatenated: that would copy the cache's scores.
    """
    top = functools.reduce(jnp.maximum, [s.max(axis=-1, keepdims=True) for s, _ in blocks])
    weights = [jnp.exp(s - jax.lax.stop_gradient(top)) for s, _ in blocks]
    total = sum(w.sum(axis=-1, keepdims=True) for w in weights)
    means = [
        jnp.einsum("bkqt,bktd->bkqd", w.astype(v.dtype), v, preferred_element_type=jnp.float32)
        for w, (_, v) in zip(weights, blocks, strict=True)
    ]
    return sum(means) / total
