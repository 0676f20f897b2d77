"""Mixture of experts as in Qwen3-MoE: softmax over all experts, top-k, no dropping, no shared expert.

Dimension letters: B rows, S tokens of a row, N tokens, M model width, E experts, k experts per token, F expert
width.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from carr_jax.models.compute import PRODUCT, Compute
from carr_jax.models.grouped import grouped_matmul
from carr_jax.sharding import gather, mesh_spec, per_device, used_axes


class Experts(NamedTuple):
    """The matrices of all experts of a layer: gate and up [E, M, F], down [E, F, M]."""

    gate: jax.Array
    up: jax.Array
    down: jax.Array


def route(
    x: jax.Array, router_MxE: jax.Array, k: int, renormalise: bool, replay: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The k experts of each token of x [..., M] (int32 [..., k]) and their weights (float32 [..., k]).

    p = softmax(x W) over all E experts; weights are the p of the best k, divided by their sum when
    `renormalise` (`norm_topk_prob`, P29).  Product and softmax in float32 at full precision: bfloat16 ties
    between experts would be broken differently by the engine and the trainer.  `replay` (any integers [..., k])
    gives the experts that the engine used; a token whose first entry is negative chooses anew.
    """
    logits = jnp.matmul(x.astype(jnp.float32), router_MxE, precision=lax.Precision.HIGHEST)
    logits = checkpoint_name(logits, PRODUCT)
    probabilities = jax.nn.softmax(logits, axis=-1)
    weights, experts = lax.top_k(probabilities, k)
    if replay is not None:
        experts = jnp.where(replay[..., :1] >= 0, replay, experts)
        weights = jnp.take_along_axis(probabilities, experts, axis=-1)
    if renormalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return experts, weights


def expert_load(experts: jax.Array, valid: jax.Array, num_experts: int) -> jax.Array:
    """Share of the (token, choice) pairs of real tokens that go to each expert: float32 [E], sums to 1.

    `experts` is [..., k], `valid` [...].  Padding also passes the router, but is not counted; without any real
    token the load is 0.
    """
    counted = jnp.broadcast_to(valid[..., None], experts.shape).astype(jnp.float32)
    counts = jnp.zeros(num_experts, jnp.float32).at[experts].add(counted)
    return counts / jnp.maximum(counted.sum(), 1.0)


def expert_mlp(
    x_BxSxM: jax.Array,
    experts_BxSxk: jax.Array,
    weights_BxSxk: jax.Array,
    matrices: Experts,
    compute: Compute,
) -> jax.Array:
    """sum_j w_j down_j(silu(gate_j x) * up_j x) over each token's k experts, [B, S, M] in x's dtype.

    On a mesh, each device has its own tokens.  Experts that are cut over fsdp and context are gathered, as any
    parameter.  Over the expert axis it is the tokens that travel: each device computes what its experts add to
    the tokens of all devices of the axis, and the sums go back.  No token is dropped in either case.
    """
    mesh = compute.mesh
    spread = used_axes(mesh, ("expert",))

    def local(x, experts, weights, *matrices):
        matrices = Experts(*(gather(w, mesh, ("fsdp", "context"), 0) for w in matrices))
        tokens = tuple(a.reshape(-1, a.shape[-1]) for a in (x, experts, weights))
        if not spread:
            y = mixture(*tokens, matrices, 0, compute)
        else:
            first = lax.axis_index("expert") * matrices.gate.shape[0]
            everyones = lax.all_gather(tokens, "expert")  # [devices, N, ...]
            parts = lax.map(lambda t: mixture(*t, matrices, first, compute), everyones)
            y = lax.psum_scatter(parts, "expert")
        names = used_axes(mesh, ("tensor",))
        return (lax.psum(y, names) if names else y).reshape(x.shape)

    row = mesh_spec(("batch", "sequence", None))
    wide = mesh_spec(("experts", "embed_expert", "mlp_expert"))
    narrow = mesh_spec(("experts", "mlp_expert", "embed_expert"))
    call = per_device(local, mesh, (row, row, row, wide, wide, narrow), row)
    return call(x_BxSxM, experts_BxSxk, weights_BxSxk, *matrices)


def mixture(
    x_NxM: jax.Array,
    experts_Nxk: jax.Array,
    weights_Nxk: jax.Array,
    matrices: Experts,
    first: jax.Array | int,
    compute: Compute,
) -> jax.Array:
    """What the experts from `first` on (as many as `matrices` has) add to each token, [N, M] in x's dtype.

    The N * k pairs are sorted by expert, so that each expert multiplies one contiguous group of rows; every
    group has the size it needs.
    """
    n, k = experts_Nxk.shape
    count = matrices.gate.shape[0]
    own = experts_Nxk.reshape(-1) - first
    own = jnp.where((own >= 0) & (own < count), own, count)  # the last group: experts of other devices
    order = jnp.argsort(own, stable=True)
    sizes = jnp.bincount(own, length=count + 1).astype(jnp.int32)

    def product(x, w):
        return checkpoint_name(grouped_matmul(x, w, sizes, compute.experts, compute.interpret), PRODUCT)

    inverse = jnp.argsort(order)
    x = take_rows(x_NxM, order, inverse, k)
    inner = jax.nn.silu(product(x, matrices.gate)) * product(x, matrices.up)
    y = take_rows(product(inner, matrices.down), inverse, order, 1).reshape(n, k, -1)
    # As one fused sum: an einsum would hold y in float32.
    return jnp.sum(y.astype(jnp.float32) * weights_Nxk[..., None], axis=1).astype(x_NxM.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def take_rows(x_NxM: jax.Array, order: jax.Array, inverse: jax.Array, k: int) -> jax.Array:
    """Each row k times, in another order: row i of the result is x[order[i] // k]; `inverse` undoes `order`.

    Its gradient gathers too; that of plain indexing would be a scatter, which is slow on every device.
    """
    return x_NxM[order // k]


def _take_rows(x, order, inverse, k):
    return take_rows(x, order, inverse, k), inverse


def _put_rows_back(k, inverse, dy):
    dx = dy[inverse].reshape(-1, k, dy.shape[-1])
    return dx.sum(axis=1, dtype=jnp.float32).astype(dy.dtype), None, None


take_rows.defvjp(_take_rows, _put_rows_back)
