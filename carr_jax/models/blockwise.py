"""Attention in blocks, on any device: memory grows with the row, not with its square (arXiv 2205.14135).

Pairs of blocks that causality or segments hide completely are skipped, in the forward and the backward pass.

Dimension letters: B rows, S queries, T keys, H query heads, K key heads, G = H / K, D head_dim; I and J count
blocks of queries and keys, N = G * (queries of a block), M keys of a block.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from carr_jax.models.compute import ATTENTION_RESULT

_HIDDEN = -1e30  # finite, so that a query without any visible key gives zeros instead of NaN (P17)


class Place(NamedTuple):
    """Where tokens stand: index in their row (int32 [S]) and segment (int32 [B, S], 0 for padding)."""

    order_S: jax.Array
    segments_BxS: jax.Array


def block_size(length: int) -> int:
    """Tokens of a block: small enough that short packed rows skip much, large enough to be quick."""
    return 128 if length <= 4096 else 512


def blockwise_attention(
    q_BxSxHxD: jax.Array,
    k_BxTxKxD: jax.Array,
    v_BxTxKxD: jax.Array,
    queries: Place,
    keys: Place,
    block: int = 0,
) -> jax.Array:
    """softmax(q k^T / sqrt(D)) v with float32 softmax, [B, S, H, D] in q's dtype.

    A query sees the keys of its own segment whose index is not larger than its own.  Queries of padding get 0.
    `block` 0 chooses a size.
    """
    block = block or block_size(k_BxTxKxD.shape[1])
    return _attention(q_BxSxHxD, k_BxTxKxD, v_BxTxKxD, queries, keys, block)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attention(q, k, v, queries, keys, block):
    return _forward(q, k, v, queries, keys, block)[0]


def _forward(q, k, v, queries: Place, keys: Place, block: int):
    """The result, and what the backward pass needs."""
    kv_heads, length = k.shape[2], q.shape[1]
    q_blocks, k_blocks, v_blocks = _cut_queries(q, kv_heads, block), _cut(k, block), _cut(v, block)
    at_q, at_k = _cut_place(queries, block), _cut_place(keys, block)
    out, lse = blockwise_forward(q_blocks, k_blocks, v_blocks, at_q, at_k)
    out = checkpoint_name(_join_queries(out, block, length, q.dtype), ATTENTION_RESULT)
    return out, (q, k, v, queries, keys, out, checkpoint_name(lse, ATTENTION_RESULT))


def _backward(block: int, kept, d_out):
    q, k, v, queries, keys, out, lse = kept
    kv_heads = k.shape[2]
    delta = jnp.einsum("bshd,bshd->bsh", d_out, out, preferred_element_type=jnp.float32)
    blocks = [_cut_queries(x, kv_heads, block) for x in (q, d_out, delta[..., None])]
    at_q, at_k = _cut_place(queries, block), _cut_place(keys, block)
    dq, dk, dv = blockwise_backward(*blocks, lse, _cut(k, block), _cut(v, block), at_q, at_k)
    dq = _join_queries(dq, block, q.shape[1], q.dtype)
    return dq, _join(dk, k.shape[1], k.dtype), _join(dv, v.shape[1], v.dtype), None, None


_attention.defvjp(_forward, _backward)


@jax.jit
def blockwise_forward(q_IxBxKxNxD, k_JxBxKxMxD, v_JxBxKxMxD, queries: Place, keys: Place):
    """Result [I, B, K, N, D] and log of the softmax's normaliser [I, B, K, N], both float32.

    One block of queries after the other; its keys pass by with a running maximum and normaliser.
    """

    def one_block(xs):
        q, at_q, seen_J = xs
        nth, count = _nth_true(seen_J)

        def add(t, carry):
            top, total, mean = carry
            j = nth[t]
            scores, mask = _scores(q, k_JxBxKxMxD[j], at_q, _at(keys, j))
            new_top = jnp.maximum(top, scores.max(-1))
            weights = jnp.where(mask, jnp.exp(scores - new_top[..., None]), 0.0)
            shrink = jnp.exp(top - new_top)
            v = v_JxBxKxMxD[j]
            more = jnp.einsum("bknm,bkmd->bknd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
            return new_top, total * shrink + weights.sum(-1), mean * shrink[..., None] + more

        zeros = jnp.zeros(q.shape[:-1], jnp.float32)
        start = (zeros + _HIDDEN, zeros, jnp.zeros(q.shape, jnp.float32))
        top, total, mean = lax.fori_loop(0, count, add, start)
        total = jnp.maximum(total, 1e-30)
        return mean / total[..., None], top + jnp.log(total)

    return lax.map(one_block, (q_IxBxKxNxD, queries, visible_blocks(queries, keys)))


@jax.jit
def blockwise_backward(q, d_out, delta, lse, k, v, queries: Place, keys: Place):
    """Gradients of q (float32), k and v (float32), in blocks: five products for each visible pair of blocks.

    One block of keys after the other; the queries that see it pass by and collect their own gradient.
    """
    scale = q.shape[-1] ** -0.5

    def one_block(dq, xs):
        k_j, v_j, at_k, seen_I = xs
        nth, count = _nth_true(seen_I)

        def add(t, carry):
            dq, dk, dv = carry
            i = nth[t]
            scores, mask = _scores(q[i], k_j, _at(queries, i), at_k)
            weights = jnp.where(mask, jnp.exp(scores - lse[i][..., None]), 0.0)
            dv += _product("bknm,bknd->bkmd", weights.astype(d_out.dtype), d_out[i])
            d_weights = _product("bknd,bkmd->bknm", d_out[i], v_j)
            d_scores = (weights * (d_weights - delta[i]) * scale).astype(q.dtype)
            dk += _product("bknm,bknd->bkmd", d_scores, q[i])
            dq = dq.at[i].add(_product("bknm,bkmd->bknd", d_scores, k_j))
            return dq, dk, dv

        zeros = jnp.zeros(k_j.shape, jnp.float32)
        dq, dk, dv = lax.fori_loop(0, count, add, (dq, zeros, zeros))
        return dq, (dk, dv)

    start = jnp.zeros(q.shape, jnp.float32)
    dq, (dk, dv) = lax.scan(one_block, start, (k, v, keys, visible_blocks(queries, keys).T))
    return dq, dk, dv


def visible_blocks(queries: Place, keys: Place) -> jax.Array:
    """bool [I, J]: may a query of block i see a key of block j, in any row.  Never wrongly False.

    Places are cut in blocks: order [I, N'], segments [I, B, N'].
    """
    causal = queries.order_S.max(-1)[:, None] >= keys.order_S.min(-1)
    (q_low, q_high), (k_low, k_high) = _segment_range(queries), _segment_range(keys)
    shared = (q_low[:, None] <= k_high) & (k_low <= q_high[:, None])
    return causal & shared.any(-1)


def _segment_range(place: Place) -> tuple[jax.Array, jax.Array]:
    """First and last real segment of each block and row, int32 [I, B]; an empty range for padding."""
    real = place.segments_BxS != 0
    low = jnp.where(real, place.segments_BxS, jnp.iinfo(jnp.int32).max).min(-1)
    return low, jnp.where(real, place.segments_BxS, -1).max(-1)


def _nth_true(seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Indices of the true values first, and how many there are."""
    return jnp.argsort(~seen, stable=True).astype(jnp.int32), seen.sum(dtype=jnp.int32)


def _scores(q_BxKxNxD, k_BxKxMxD, queries: Place, keys: Place):
    """Scaled scores [B, K, N, M] in float32, hidden ones very negative, and the mask."""
    scores = _product("bknd,bkmd->bknm", q_BxKxNxD, k_BxKxMxD) * q_BxKxNxD.shape[-1] ** -0.5
    groups = q_BxKxNxD.shape[2] // queries.order_S.shape[-1]
    causal = queries.order_S[:, None] >= keys.order_S
    same = queries.segments_BxS[:, :, None] == keys.segments_BxS[:, None, :]
    mask = causal & same & (keys.segments_BxS != 0)[:, None, :]
    mask = jnp.tile(mask, (1, groups, 1))[:, None]
    return jnp.where(mask, scores, _HIDDEN), mask


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _at(place: Place, block: jax.Array) -> Place:
    return Place(place.order_S[block], place.segments_BxS[block])


# --------------------------------------------------------------------------------------- cutting and joining


def _pad(x: jax.Array, block: int, axis: int) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block)
    return jnp.pad(x, widths)


def _cut_queries(x_BxSxHxD: jax.Array, kv_heads: int, block: int) -> jax.Array:
    """[I, B, K, G * block, D]: the queries that share a key head are one matrix."""
    x = _pad(x_BxSxHxD, block, 1)
    b, s, h, d = x.shape
    x = x.reshape(b, s // block, block, kv_heads, h // kv_heads, d).transpose(1, 0, 3, 4, 2, 5)
    return x.reshape(s // block, b, kv_heads, -1, d)


def _join_queries(x_IxBxKxNxD: jax.Array, block: int, length: int, dtype) -> jax.Array:
    """Inverse of `_cut_queries`, without the padding."""
    i, b, k, n, d = x_IxBxKxNxD.shape
    x = x_IxBxKxNxD.astype(dtype).reshape(i, b, k, n // block, block, d).transpose(1, 0, 4, 2, 3, 5)
    return x.reshape(b, i * block, -1, d)[:, :length]


def _cut(x_BxTxKxD: jax.Array, block: int) -> jax.Array:
    """[J, B, K, block, D]."""
    x = _pad(x_BxTxKxD, block, 1)
    b, t, k, d = x.shape
    return x.reshape(b, t // block, block, k, d).transpose(1, 0, 3, 2, 4)


def _join(x_JxBxKxMxD: jax.Array, length: int, dtype) -> jax.Array:
    j, b, k, m, d = x_JxBxKxMxD.shape
    return x_JxBxKxMxD.astype(dtype).transpose(1, 0, 3, 2, 4).reshape(b, j * m, k, d)[:, :length]


def _cut_place(place: Place, block: int) -> Place:
    """Order [I, block] and segments [I, B, block]; what is padded is of no segment."""
    order = _pad(place.order_S, block, 0).reshape(-1, block)
    segments = _pad(place.segments_BxS, block, 1)
    return Place(order, segments.reshape(segments.shape[0], -1, block).swapaxes(0, 1))
