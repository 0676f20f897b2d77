"""Log-probabilities and entropies of the trained tokens, without ever holding the logits of all positions.

A 64,000-token row with Qwen3's 151,936 entries would need 39 GB of fp32 logits; a chunk of 1,024 needs 0.6.
Only tokens of the mask get logits at all: what a tool wrote is never a target.

Dimension letters: B rows, S tokens of a row, N tokens, D model width, V vocabulary (of one device), C chunk.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from carr_jax.models.compute import Compute
from carr_jax.sharding import SHARED, gather, mesh_spec, per_device, used_axes


def token_logprobs(
    hidden_BxSxD: Array,
    head_DxV: Array,
    targets_BxS: Array,
    mask_BxS: Array,
    temperature: float,
    chunk: int,
    compute: Compute = Compute(),
) -> tuple[Array, Array]:
    """fp32 [B, S] each: log p(target) and the entropy of p = softmax(hidden @ head / temperature).

    Both are 0 where `mask_BxS` is False.  At most `chunk` positions of a device have logits at a time, in the
    forward and the backward pass.  The entropy carries no gradient.  Raises ValueError for a temperature or
    chunk that is not positive.
    """
    if not temperature > 0 or chunk < 1:
        raise ValueError(f"temperature={temperature} and logprob_chunk={chunk} must be positive")
    mesh = compute.mesh
    vocabulary = used_axes(mesh, ("tensor",))

    def local(hidden, head, targets, mask):
        size = hidden.shape[0] * hidden.shape[1]
        head = gather(head.astype(hidden.dtype), mesh, SHARED, 0)
        how = _How(temperature, min(chunk, size), vocabulary)
        flat = (hidden.reshape(size, -1), head, jnp.ravel(targets), jnp.ravel(mask))
        return tuple(x.reshape(targets.shape) for x in _logprobs(*flat, how))

    row = mesh_spec(("batch", "sequence"))
    specs = (mesh_spec(("batch", "sequence", None)), mesh_spec(("embed", "vocab")), row, row)
    call = per_device(local, mesh, specs, (row, row))
    logp, entropy = call(hidden_BxSxD, head_DxV, targets_BxS, mask_BxS)
    return logp, lax.stop_gradient(entropy)


class _How(NamedTuple):
    temperature: float
    chunk: int
    vocabulary: tuple[str, ...]  # mesh axes that cut the vocabulary


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _logprobs(hidden_NxD, head_DxV, targets_N, mask_N, how: _How) -> tuple[Array, Array]:
    return _forward(hidden_NxD, head_DxV, targets_N, mask_N, how)[0]


def _forward(hidden, head, targets, mask, how: _How):
    """(log-probs, entropies) and what the backward pass needs: nothing as large as the logits."""
    plan = _plan(mask, how.chunk)

    def one(t, out):
        rows = plan.rows(t)
        logits = _logits(hidden[rows], head, how.temperature)
        top = _across(lax.pmax, logits.max(-1), how)
        weights = jnp.exp(logits - top[:, None])
        total = _across(lax.psum, weights.sum(-1), how)
        normaliser = top + jnp.log(total)
        mean = _across(lax.psum, jnp.sum(weights * logits, -1), how) / total
        chosen = jnp.sum(jnp.where(_is_target(logits, targets[rows], how), logits, 0.0), -1)
        values = jnp.stack([_across(lax.psum, chosen, how) - normaliser, normaliser - mean, normaliser])
        return lax.dynamic_update_slice_in_dim(out, values, t * how.chunk, 1)

    out = lax.fori_loop(0, plan.chunks, one, jnp.zeros((3, plan.order.size), jnp.float32))
    logp, entropy, normaliser = jnp.where(mask, out[:, plan.inverse], 0.0)
    return (logp, entropy), (hidden, head, targets, mask, normaliser)


def _backward(how: _How, kept, cotangents):
    """d log p(y) / d logits = (1[y] - p) / temperature, chunk by chunk, with the logits computed again."""
    hidden, head, targets, mask, normaliser = kept
    plan = _plan(mask, how.chunk)
    gradient = jnp.where(mask, _across(lax.psum, cotangents[0], how), 0.0) / how.temperature

    def one(t, sums):
        d_hidden, d_head = sums
        rows = plan.rows(t)
        own = hidden[rows]
        logits = _logits(own, head, how.temperature)
        probabilities = jnp.exp(logits - normaliser[rows][:, None])
        target = _is_target(logits, targets[rows], how).astype(jnp.float32)
        # Rows behind the last masked one have no normaliser; their gradient is 0, which must not meet an inf.
        g = jnp.where(plan.real(t), gradient[rows], 0.0)[:, None]
        d_logits = jnp.where(g != 0, g * (target - probabilities), 0.0).astype(head.dtype)
        d_own = _matmul(d_logits, head, ((1,), (1,))).astype(hidden.dtype)
        place = jnp.where(plan.real(t), rows, hidden.shape[0])  # rows behind the last one go nowhere
        d_hidden = d_hidden.at[place].set(d_own, mode="drop")
        return d_hidden, d_head + _matmul(own, d_logits, ((0,), (0,)))

    zeros = jnp.zeros(hidden.shape, hidden.dtype), jnp.zeros(head.shape, jnp.float32)
    d_hidden, d_head = lax.fori_loop(0, plan.chunks, one, zeros)
    return d_hidden, d_head.astype(head.dtype), None, None


_logprobs.defvjp(_forward, _backward)


class _Plan(NamedTuple):
    """Which tokens go through the head, in chunks: those of the mask first, as many chunks as they need."""

    order: Array  # int32, all tokens, masked ones first, padded to whole chunks with token 0
    inverse: Array  # int32 [N], place of each token in `order`
    count: Array
    chunk: int

    @property
    def chunks(self) -> Array:
        return -(-self.count // self.chunk)

    def rows(self, t: Array) -> Array:
        return lax.dynamic_slice_in_dim(self.order, t * self.chunk, self.chunk)

    def real(self, t: Array) -> Array:
        return t * self.chunk + jnp.arange(self.chunk) < self.count


def _plan(mask_N: Array, chunk: int) -> _Plan:
    order = jnp.argsort(~mask_N, stable=True).astype(jnp.int32)
    return _Plan(jnp.pad(order, (0, -order.size % chunk)), jnp.argsort(order), mask_N.sum(), chunk)


def _logits(hidden_CxD: Array, head_DxV: Array, temperature: float) -> Array:
    """fp32 (P16); the division by the temperature is part of the policy (P15)."""
    return _matmul(hidden_CxD, head_DxV, ((1,), (0,))) / temperature


def _matmul(a: Array, b: Array, contract: tuple) -> Array:
    return lax.dot_general(
        a, b, (contract, ((), ())), precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _is_target(logits_CxV: Array, targets_C: Array, how: _How) -> Array:
    """bool [C, V], True at the target when it lies in this device's part of the vocabulary."""
    first = lax.axis_index(how.vocabulary) * logits_CxV.shape[1] if how.vocabulary else 0
    entry = lax.broadcasted_iota(jnp.int32, logits_CxV.shape, 1) + first
    return entry == targets_C[:, None]


def _across(reduce, x: Array, how: _How) -> Array:
    """The sum or maximum over the devices that cut the vocabulary."""
    return reduce(x, how.vocabulary) if how.vocabulary else x
