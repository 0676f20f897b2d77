"""Rotary position embedding (arXiv 2104.09864) in the rotate-half layout of the Qwen3 checkpoints."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rotary_phases(positions_BxS: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """cos and sin of position * theta^(-2i / head_dim), each float32 [B, S, head_dim / 2].

    Positions stay integers until they meet the frequencies, and the product is a plain float32 multiply:
    bfloat16 cannot hold position 4097, and a matmul unit would round the factors (P30).
    """
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequency = 1.0 / (jnp.float32(theta) ** exponent)
    phase = positions_BxS.astype(jnp.float32)[..., None] * frequency
    return jnp.cos(phase), jnp.sin(phase)


def rotate(x_BxSxHxD: jax.Array, phases: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate the pairs (x_i, x_{i + D/2}) by their phases, in float32; returns the input's dtype."""
    cos, sin = (p[:, :, None, :] for p in phases)
    first, second = jnp.split(x_BxSxHxD.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x_BxSxHxD.dtype)
