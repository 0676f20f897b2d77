"""Mixture of experts as in Qwen3-MoE: softmax over all experts, top-k, no dropping, no shared expert.

Dimension letters: N tokens, M model width, E experts, k experts per token, F expert width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def route(x_NxM: jax.Array, router_MxE: jax.Array, k: int, renormalise: bool) -> tuple[jax.Array, jax.Array]:
    """The k experts of each token (int32 [N, k], best first) and their weights (float32 [N, k]).

    p = softmax(x W) over all E experts; weights are the top-k p, divided by their sum when `renormalise`
    (`norm_topk_prob`, P29).  Product and softmax in float32 at full precision: bfloat16 ties between experts
    would be broken differently by the engine and the trainer.
    """
    logits = jnp.matmul(x_NxM.astype(jnp.float32), router_MxE, precision=jax.lax.Precision.HIGHEST)
    weights, experts = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), k)
    if renormalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return experts, weights


def expert_load(experts_Nxk: jax.Array, valid_N: jax.Array, num_experts: int) -> jax.Array:
    """Share of the (token, choice) pairs of real tokens that go to each expert: float32 [E], sums to 1.

    Padding also passes the router, but is not counted; without any real token the load is 0.
    """
    valid = jnp.broadcast_to(valid_N[:, None], experts_Nxk.shape).astype(jnp.float32)
    counts = jnp.zeros(num_experts, jnp.float32).at[experts_Nxk].add(valid)
    return counts / jnp.maximum(valid.sum(), 1.0)


def expert_mlp(
    x_NxM: jax.Array,
    experts_Nxk: jax.Array,
    weights_Nxk: jax.Array,
    gate_ExMxF: jax.Array,
    up_ExMxF: jax.Array,
    down_ExFxM: jax.Array,
) -> jax.Array:
    """sum_j w_j down_j(silu(gate_j x) * up_j x) over each token's k experts, [N, M] in x's dtype.

    The N * k pairs are sorted by expert, so that each expert multiplies one contiguous group of rows; every
    group has the size it needs and no token is dropped.
    """
    n, k = experts_Nxk.shape
    order = jnp.argsort(experts_Nxk.reshape(-1), stable=True)
    groups = jnp.bincount(experts_Nxk.reshape(-1), length=gate_ExMxF.shape[0])
    x = x_NxM[order // k]
    inner = jax.nn.silu(jax.lax.ragged_dot(x, gate_ExMxF, groups)) * jax.lax.ragged_dot(x, up_ExMxF, groups)
    y = jax.lax.ragged_dot(inner, down_ExFxM, groups)[jnp.argsort(order)].reshape(n, k, -1)
    return jnp.einsum("nkm,nk->nm", y.astype(jnp.float32), weights_Nxk).astype(x_NxM.dtype)
