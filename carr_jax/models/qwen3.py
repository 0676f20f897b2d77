"""The Qwen3 policy, dense and mixture of experts, as pure functions over a plain dict of float32 arrays.

Inside it is Flax Linen (`nn.scan` over layers, `nn.remat`); outside only `init_params`, `hidden_states`,
`extend`, `head_matrix`, `expert_loads`, `param_shapes` and `logical_axes` are seen.  Parameters of the layers
are stacked on a leading axis L and cast to the compute dtype inside the scan, one layer at a time.

Dimension letters: B rows, S or C tokens, M (public: D) model width, H query heads, K key heads, D head_dim,
F width of the MLP, E experts, V vocabulary, T cached tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from carr_jax.models.attention import Past, attention
from carr_jax.models.config import ModelConfig
from carr_jax.models.moe import expert_load, expert_mlp, route
from carr_jax.models.rope import rotary_phases, rotate

Params = dict[str, Any]

_MATRIX = nn.initializers.lecun_normal()
_EMBEDDING = nn.initializers.normal(0.02)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis; float32 inside, x's dtype outside (1910.07467)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype)


class _Norm(nn.Module):
    eps: float
    axis: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.with_logical_partitioning(nn.initializers.ones, (self.axis,))
        return rms_norm(x, self.param("scale", init, (x.shape[-1],), jnp.float32), self.eps)


class _Matrices(nn.Module):
    """Shared by the blocks below: a float32 parameter with logical axes, cast to the compute dtype."""

    config: ModelConfig
    dtype: jnp.dtype

    def matrix(self, name: str, axes: tuple[str, ...], shape: tuple[int, ...], fan_in: tuple[int, ...]):
        batch = (0,) if axes[0] == "experts" else ()
        out = tuple(i for i in range(len(shape)) if i not in fan_in + batch)
        init = nn.initializers.lecun_normal(in_axis=fan_in, out_axis=out, batch_axis=batch)
        return self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)


class _Attention(_Matrices):
    @nn.compact
    def __call__(self, x_BxSxM, positions_BxS, segments_BxS, past):
        c = self.config
        q = self._project(x_BxSxM, "q", "heads", c.num_heads)
        k = self._project(x_BxSxM, "k", "kv_heads", c.num_kv_heads)
        v = self._project(x_BxSxM, "v", "kv_heads", c.num_kv_heads)
        phases = rotary_phases(positions_BxS, c.head_dim, c.rope_theta)
        q = rotate(_Norm(c.rms_eps, "head_dim", name="q_norm")(q), phases)
        k = rotate(_Norm(c.rms_eps, "head_dim", name="k_norm")(k), phases)
        k, v = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)  # [B, K, D, S] and [B, K, S, D], as in the cache
        out = attention(q, k, v, positions_BxS, segments_BxS, past)
        axes = ("heads", "head_dim", "embed")
        o = self.matrix("o", axes, (c.num_heads, c.head_dim, c.d_model), (0, 1))
        return jnp.einsum("bshd,hdm->bsm", out, o.astype(self.dtype)), (k, v)

    def _project(self, x_BxSxM, name: str, axis: str, heads: int):
        c = self.config
        w = self.matrix(name, ("embed", axis, "head_dim"), (c.d_model, heads, c.head_dim), (0,))
        return jnp.einsum("bsm,mhd->bshd", x_BxSxM, w.astype(self.dtype))


class _Mlp(_Matrices):
    @nn.compact
    def __call__(self, x_BxSxM):
        c = self.config
        gate, up = (self.matrix(n, ("embed", "mlp"), (c.d_model, c.d_ff), (0,)) for n in ("gate", "up"))
        down = self.matrix("down", ("mlp", "embed"), (c.d_ff, c.d_model), (0,))
        inner = nn.silu(x_BxSxM @ gate.astype(self.dtype)) * (x_BxSxM @ up.astype(self.dtype))
        return inner @ down.astype(self.dtype)


class _Experts(_Matrices):
    @nn.compact
    def __call__(self, x_BxSxM, segments_BxS):
        c = self.config
        wide, narrow = (c.num_experts, c.d_model, c.d_ff_expert), (c.num_experts, c.d_ff_expert, c.d_model)
        router = self.matrix("router", ("embed", "router"), (c.d_model, c.num_experts), (0,))
        axes = ("experts", "embed", "mlp_expert")
        gate, up = (self.matrix(n, axes, wide, (1,)).astype(self.dtype) for n in ("gate", "up"))
        down = self.matrix("down", ("experts", "mlp_expert", "embed"), narrow, (1,)).astype(self.dtype)
        x = x_BxSxM.reshape(-1, c.d_model)
        experts, weights = route(x, router, c.experts_per_token, c.norm_topk_prob)
        self.sow("stats", "load", expert_load(experts, segments_BxS.reshape(-1) != 0, c.num_experts))
        return expert_mlp(x, experts, weights, gate, up, down).reshape(x_BxSxM.shape)


class _Layer(nn.Module):
    config: ModelConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x_BxSxM, past, positions_BxS, segments_BxS):
        c = self.config
        normed = _Norm(c.rms_eps, "embed", name="attention_norm")(x_BxSxM)
        attended, kv = _Attention(c, self.dtype, name="attention")(normed, positions_BxS, segments_BxS, past)
        x = x_BxSxM + attended
        normed = _Norm(c.rms_eps, "embed", name="mlp_norm")(x)
        if c.is_moe:
            x = x + _Experts(c, self.dtype, name="moe")(normed, segments_BxS)
        else:
            x = x + _Mlp(c, self.dtype, name="mlp")(normed)
        return x, kv if past else None  # training must not stack the keys of all layers


class _Qwen3(nn.Module):
    config: ModelConfig
    dtype: jnp.dtype
    remat: str

    @nn.compact
    def __call__(self, tokens_BxS, positions_BxS, segments_BxS):
        c = self.config
        embedding = self.param(
            "embedding",
            nn.with_logical_partitioning(_EMBEDDING, ("vocab", "embed")),
            (c.vocab_size, c.d_model),
            jnp.float32,
        )
        if not c.tie_embeddings:  # declared here so that the tree is complete; used by `head_matrix`
            init = nn.with_logical_partitioning(_MATRIX, ("embed", "vocab"))
            self.param("head", init, (c.d_model, c.vocab_size), jnp.float32)
        layers = nn.scan(
            _REMAT[self.remat],
            variable_axes={"params": 0, "stats": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast, nn.broadcast, nn.broadcast),
            length=c.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(c, self.dtype, name="layers")
        x, _ = layers(embedding[tokens_BxS].astype(self.dtype), (), positions_BxS, segments_BxS)
        return _Norm(c.rms_eps, "embed", name="final_norm")(x)


_REMAT = {"none": _Layer, "full": nn.remat(_Layer, prevent_cse=False)}


@functools.partial(jax.jit, static_argnames="config")
def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Random float32 parameters: a nested dict, those of the layers stacked on a leading axis L."""
    return nn.meta.unbox(_init(config, key))


def param_shapes(config: ModelConfig) -> Params:
    """The tree of `init_params` with a jax.ShapeDtypeStruct in place of each array; allocates nothing."""
    return jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))


def logical_axes(config: ModelConfig) -> Params:
    """The tree of `init_params` with a PartitionSpec of logical axis names in place of each array."""
    boxed = jax.eval_shape(lambda key: _init(config, key), jax.random.key(0))
    return nn.get_partition_spec(boxed)


def hidden_states(
    params: Params,
    config: ModelConfig,
    tokens_BxS: jax.Array,
    positions_BxS: jax.Array,
    segments_BxS: jax.Array,
    *,
    remat: str = "none",
    dtype: jnp.dtype = jnp.float32,
) -> jax.Array:
    """Final-normed hidden states [B, S, D] in `dtype` of packed rows (int32 inputs).

    Tokens see earlier positions of their own segment; segment 0 is padding and its output has no meaning.
    `remat` "full" keeps only the residual stream of each layer for the backward pass and recomputes the rest.
    """
    model = _Qwen3(config, jnp.dtype(dtype), remat)
    return model.apply({"params": params}, tokens_BxS, positions_BxS, segments_BxS)


def expert_loads(
    params: Params,
    config: ModelConfig,
    tokens_BxS: jax.Array,
    positions_BxS: jax.Array,
    segments_BxS: jax.Array,
) -> jax.Array:
    """Share of the routed pairs of real tokens that each expert receives, float32 [L, E]."""
    model = _Qwen3(config, jnp.dtype(jnp.float32), "none")
    inputs = (tokens_BxS, positions_BxS, segments_BxS)
    _, collected = model.apply({"params": params}, *inputs, mutable=["stats"])
    return collected["stats"]["layers"]["moe"]["load"][0]


def extend(
    params: Params,
    config: ModelConfig,
    tokens_BxC: jax.Array,
    positions_BxC: jax.Array,
    valid_BxC: jax.Array,
    past: Sequence[tuple[Past, ...]],
    *,
    dtype: jnp.dtype = jnp.float32,
) -> tuple[jax.Array, list[tuple[jax.Array, jax.Array]]]:
    """Continue each row after its cached tokens: hidden states [B, C, D] and the chunk's keys and values.

    `past` holds for each layer the cached blocks, and is only read; the returned list has for each layer k
    [B, K, D, C] and v [B, K, C, D], for the caller to write in one go.  Where `valid_BxC` is False the outputs
    have no meaning.  The layers are those of `hidden_states`, so the numbers agree, but unrolled: a scan would
    copy every layer's cache at every step.
    """
    x, new = params["embedding"][tokens_BxC].astype(dtype), []
    for i, blocks in enumerate(past):
        weights = {"params": jax.tree.map(lambda w, i=i: w[i], params["layers"])}
        segments = valid_BxC.astype(jnp.int32)
        x, kv = _Layer(config, jnp.dtype(dtype)).apply(weights, x, blocks, positions_BxC, segments)
        new.append(kv)
    return rms_norm(x, params["final_norm"]["scale"], config.rms_eps), new


def head_matrix(params: Params, config: ModelConfig) -> jax.Array:
    """float32 [D, V] with logits = hidden @ head, to be multiplied in float32 (P16)."""
    return params["embedding"].T if config.tie_embeddings else params["head"]


def _init(config: ModelConfig, key: jax.Array) -> Params:
    one = jnp.ones((1, 1), jnp.int32)
    return _Qwen3(config, jnp.dtype(jnp.float32), "none").init(key, one, one, one)["params"]
