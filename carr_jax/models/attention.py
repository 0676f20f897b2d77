"""Grouped-query attention: over packed rows for training, over a cache and a chunk for decoding.

Dimension letters: B rows, S queries, T keys, H query heads, K key heads, G = H / K, D head_dim.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from carr_jax.models.blockwise import Place, blockwise_attention
from carr_jax.models.compute import Compute
from carr_jax.sharding import mesh_spec, per_device

# Finite, so that a row of padding without any visible key gives a uniform softmax instead of NaN (P17).
_HIDDEN = -1e30

# ------------------------------------------------------------------------------------------- packed rows


def context_order(length: int, shards: int) -> np.ndarray:
    """int32 [length]: index in its row of the token that stands at each place of a row cut into `shards`.

    Zig-zag: part i holds chunks i and 2 * shards - 1 - i of 2 * shards, so that all parts see equally many
    keys.  With one shard, the identity.  Raises ValueError when the row cannot be cut so.
    """
    if shards == 1:
        return np.arange(length, dtype=np.int32)
    if length % (2 * shards):
        raise ValueError(f"rows of {length} tokens cannot be cut into 2 * {shards} equal chunks")
    chunks = np.arange(length, dtype=np.int32).reshape(2 * shards, -1)
    return np.stack([chunks[:shards], chunks[: shards - 1 : -1]], axis=1).reshape(-1)


def self_attention(
    q_BxSxHxD: jax.Array,
    k_BxSxKxD: jax.Array,
    v_BxSxKxD: jax.Array,
    segments_BxS: jax.Array,
    compute: Compute,
) -> jax.Array:
    """softmax(q k^T / sqrt(D)) v of packed rows, [B, S, H, D] in q's dtype, softmax in float32.

    A query sees the keys of its own segment up to its own place; segment 0 is padding and is seen by nobody.
    Rows of padding give finite values without meaning.  On a mesh, each device has its rows, its heads and its
    part of the sequence (in `context_order`); keys and values are gathered over the context axis, which
    grouped-query attention keeps small.
    """
    kernel = {"blockwise": _blockwise, "splash": _splash, "cudnn": _cudnn}[compute.attention]
    return kernel(q_BxSxHxD, k_BxSxKxD, v_BxSxKxD, segments_BxS, compute)


def _shards(compute: Compute) -> int:
    return 1 if compute.mesh is None else compute.mesh.shape["context"]


def _by_device(function, compute: Compute, extra: Sequence[Any], q, k, v, segments) -> jax.Array:
    """function(*extra, q, k, v, own segments, segments of the row) on each device, keys in the row's order.

    `extra` are pairs (value, spec) that the kernel needs beside them.
    """
    heads, row = mesh_spec(("batch", "sequence", "active_heads", None)), mesh_spec(("batch", "sequence"))

    def local(*args):
        *others, q, k, v, segments = args
        k, v, whole_row = (in_row_order(x, compute) for x in (k, v, segments))
        return function(*others, q, k, v, segments, whole_row)

    specs = (*(spec for _, spec in extra), heads, heads, heads, row)
    call = per_device(local, compute.mesh, specs, heads)
    return call(*(value for value, _ in extra), q, k, v, segments)


def in_row_order(x: jax.Array, compute: Compute) -> jax.Array:
    """Inside `per_device`: the whole rows of an array [B, S / shards, ...], undoing `context_order`."""
    n = _shards(compute)
    if n == 1:
        return x
    parts = jax.lax.all_gather(x, "context")  # [n, B, S / n, ...]
    low, high = jnp.split(parts, 2, axis=2)
    chunks = jnp.concatenate([low, high[::-1]])
    return chunks.swapaxes(0, 1).reshape(x.shape[0], -1, *x.shape[2:])


def _blockwise(q, k, v, segments, compute: Compute) -> jax.Array:
    order = jnp.asarray(context_order(q.shape[1], _shards(compute)))

    def function(order, q, k, v, own, row):
        return blockwise_attention(q, k, v, Place(order, own), Place(jnp.arange(row.shape[1]), row))

    return _by_device(function, compute, [(order, mesh_spec(("sequence",)))], q, k, v, segments)


def _splash(q, k, v, segments, compute: Compute) -> jax.Array:
    # Here, because the kernels of Pallas take long to import and only a TPU needs them.
    from carr_jax.models.splash import heads_at_once, splash_attention, splash_kernel, splash_spec

    shards = _shards(compute)
    tensor = 1 if compute.mesh is None else compute.mesh.shape["tensor"]
    heads = heads_at_once(q.shape[1], shards, q.shape[2] // tensor, k.shape[2] // tensor, q.shape[3])
    kernel = splash_kernel(
        context_order(q.shape[1], shards).tobytes(),
        heads=heads,
        shards=shards,
        keep=compute.remat != "full",
        interpret=compute.interpret,
    )
    extra = [(kernel, splash_spec(kernel, compute.mesh))]
    return _by_device(functools.partial(splash_attention, heads), compute, extra, q, k, v, segments)


def _cudnn(q, k, v, segments, compute: Compute) -> jax.Array:
    """cuDNN's flash attention knows lengths but no segments: rows must hold one segment each."""
    if _shards(compute) > 1:
        raise ValueError("attention=cudnn cannot cut rows over a context axis; use blockwise")

    def function(q, k, v, own, row):
        lengths = jnp.sum(own != 0, axis=1, dtype=jnp.int32)
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation="cudnn",
            query_seq_lengths=lengths, key_value_seq_lengths=lengths,
        )  # fmt: skip

    return _by_device(function, compute, [], q, k, v, segments)


# ------------------------------------------------------------------------------------- a cache and a chunk


class Past(NamedTuple):
    """Keys (after norm and rotation) and values of earlier tokens; only the first `length_B` of T are real.

    The order of the axes makes both products of a decode step plain matmuls over the cache as it lies in
    memory; with [B, T, K, D] they are 10 times slower on a CPU.
    """

    k_BxKxDxT: jax.Array
    v_BxKxTxD: jax.Array
    length_B: jax.Array


def cached_attention(
    q_BxSxHxD: jax.Array,
    k_BxKxDxS: jax.Array,
    v_BxKxSxD: jax.Array,
    positions_BxS: jax.Array,
    segments_BxS: jax.Array,
    past: Sequence[Past],
) -> jax.Array:
    """Attention of a chunk of tokens to itself (as `self_attention`) and to cached ones; [B, S, H, D].

    Every query sees the first `length_B` keys of each `past`.  Within a segment, positions grow with the index.
    """
    b, s, h, d = q_BxSxHxD.shape
    kv_heads = k_BxKxDxS.shape[1]
    groups = h // kv_heads
    # [B, K, S * G, D]: the queries that share a key head are one matrix, so that both products are plain
    # batched matmuls over the cache as it lies in memory.
    q = q_BxSxHxD.reshape(b, s, kv_heads, groups, d).swapaxes(1, 2).reshape(b, kv_heads, s * groups, d)
    mask = jnp.repeat(visible(positions_BxS, segments_BxS), groups, axis=1)
    blocks = [(_scores(q, k_BxKxDxS, mask), v_BxKxSxD)]
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
