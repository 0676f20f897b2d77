"""The Qwen3 policy, dense and mixture of experts, as pure functions over a plain dict of float32 arrays.

Inside it is Flax Linen (`nn.scan` over layers, `nn.remat`); outside only `init_params`, `hidden_states`,
`extend`, `head_matrix`, `working_copy`, `expert_choices`, `expert_loads`, `param_shapes` and `param_shardings`
are seen.  Parameters of the layers are stacked on a leading axis L.

Dimension letters: B rows, S or C tokens, M (public: D) model width, H query heads, K key heads, D head_dim,
F width of the MLP, E experts, V vocabulary, T cached tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from carr_jax.models.attention import Past, cached_attention, self_attention
from carr_jax.models.compute import ATTENTION_RESULT, LAYER_INPUT, PRODUCT, Compute
from carr_jax.models.config import ModelConfig
from carr_jax.models.moe import Experts, expert_load, expert_mlp, route
from carr_jax.models.rope import rotary_phases, rotate
from carr_jax.sharding import SHARED, constrain, gather, mesh_spec, per_device, tree_shardings, used_axes

Params = dict[str, Any]

_MATRIX = nn.initializers.lecun_normal()
_EMBEDDING = nn.initializers.normal(0.02)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis; float32 inside, x's dtype outside (1910.07467)."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype)


def linear(x: jax.Array, w: jax.Array, compute: Compute, inputs: int = 1) -> jax.Array:
    """Contracts the last `inputs` axes of x [B, S, ...] with the first of w.

    On one device as a product of two matrices: with B and S apart, the gradient of w contracts over two axes,
    for which XLA on a CPU takes twice the time.  On a mesh B and S are cut over different axes and stay apart.
    """
    if compute.mesh is None or compute.mesh.size == 1:
        flat = x.reshape(-1, math.prod(w.shape[:inputs])) @ w.reshape(-1, math.prod(w.shape[inputs:]))
        y = flat.reshape(*x.shape[:-inputs], *w.shape[inputs:])
    else:
        axes = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
        y = jax.lax.dot_general(x, w, (axes, ((), ())))
    return checkpoint_name(y, PRODUCT)


class _Norm(nn.Module):
    eps: float
    axis: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.with_logical_partitioning(nn.initializers.ones, (self.axis,))
        return rms_norm(x, self.param("scale", init, (x.shape[-1],), jnp.float32), self.eps)


class _Matrices(nn.Module):
    """Shared by the blocks below: a float32 parameter with logical axes, cast to the compute dtype.

    The cast comes before anything is gathered, so that the parameters travel in the compute dtype.
    """

    config: ModelConfig
    compute: Compute

    def matrix(
        self, name: str, axes: tuple[str, ...], shape: tuple[int, ...], inputs: tuple[int, ...], dtype=None
    ):
        batch = (0,) if axes[0] == "experts" else ()
        out = tuple(i for i in range(len(shape)) if i not in inputs + batch)
        init = nn.initializers.lecun_normal(in_axis=inputs, out_axis=out, batch_axis=batch)
        w = self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)
        return w.astype(dtype or self.compute.dtype)


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
        if past:
            k, v = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)  # [B, K, D, S] and [B, K, S, D], as in the cache
            out = cached_attention(q, k, v, positions_BxS, segments_BxS, past)
        else:
            out = self_attention(q, k, v, segments_BxS, self.compute)
        axes = ("heads", "head_dim", "embed")
        o = self.matrix("o", axes, (c.num_heads, c.head_dim, c.d_model), (0, 1))
        return linear(out, o, self.compute, inputs=2), (k, v)

    def _project(self, x_BxSxM, name: str, axis: str, heads: int):
        c = self.config
        w = self.matrix(name, ("embed", axis, "head_dim"), (c.d_model, heads, c.head_dim), (0,))
        y = linear(x_BxSxM, w, self.compute)
        return constrain(y, self.compute.mesh, "batch", "sequence", "active_heads", None)


class _Mlp(_Matrices):
    @nn.compact
    def __call__(self, x_BxSxM):
        c = self.config
        gate, up = (self.matrix(n, ("embed", "mlp"), (c.d_model, c.d_ff), (0,)) for n in ("gate", "up"))
        down = self.matrix("down", ("mlp", "embed"), (c.d_ff, c.d_model), (0,))
        inner = nn.silu(linear(x_BxSxM, gate, self.compute)) * linear(x_BxSxM, up, self.compute)
        inner = constrain(inner, self.compute.mesh, "batch", "sequence", "active_mlp")
        return linear(inner, down, self.compute)


class _Moe(_Matrices):
    @nn.compact
    def __call__(self, x_BxSxM, segments_BxS, replay_BxSxk):
        c = self.config
        wide, narrow = (c.num_experts, c.d_model, c.d_ff_expert), (c.num_experts, c.d_ff_expert, c.d_model)
        axes = ("embed", "router")
        router = self.matrix("router", axes, (c.d_model, c.num_experts), (0,), jnp.float32)
        axes = ("experts", "embed_expert", "mlp_expert")
        gate, up = (self.matrix(n, axes, wide, (1,)) for n in ("gate", "up"))
        down = self.matrix("down", ("experts", "mlp_expert", "embed_expert"), narrow, (1,))
        experts, weights = route(x_BxSxM, router, c.experts_per_token, c.norm_topk_prob, replay_BxSxk)
        self.sow("stats", "experts", experts)
        return expert_mlp(x_BxSxM, experts, weights, Experts(gate, up, down), self.compute)


class _Layer(nn.Module):
    config: ModelConfig
    compute: Compute

    @nn.compact
    def __call__(self, x_BxSxM, replay_BxSxk, past, positions_BxS, segments_BxS):
        c, mesh = self.config, self.compute.mesh
        x_BxSxM = checkpoint_name(x_BxSxM, LAYER_INPUT)
        normed = _Norm(c.rms_eps, "embed", name="attention_norm")(x_BxSxM)
        attention = _Attention(c, self.compute, name="attention")
        attended, kv = attention(normed, positions_BxS, segments_BxS, past)
        x = constrain(x_BxSxM + attended, mesh, "batch", "sequence", "residual")
        normed = _Norm(c.rms_eps, "embed", name="mlp_norm")(x)
        if c.is_moe:
            x = x + _Moe(c, self.compute, name="moe")(normed, segments_BxS, replay_BxSxk)
        else:
            x = x + _Mlp(c, self.compute, name="mlp")(normed)
        x = constrain(x, mesh, "batch", "sequence", "residual")
        return x, kv if past else None  # training must not stack the keys of all layers


class _Qwen3(nn.Module):
    config: ModelConfig
    compute: Compute

    @nn.compact
    def __call__(self, tokens_BxS, positions_BxS, segments_BxS, replay_LxBxSxk=None):
        c, mesh = self.config, self.compute.mesh
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
            _recomputed(self.compute.remat),
            variable_axes={"params": 0, "stats": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
            length=c.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(c, self.compute, name="layers")
        x = embed(embedding, tokens_BxS, self.compute)
        x = constrain(x, mesh, "batch", "sequence", "residual")
        x, _ = layers(x, replay_LxBxSxk, (), positions_BxS, segments_BxS)
        return _Norm(c.rms_eps, "embed", name="final_norm")(x)


def embed(embedding_VxM: jax.Array, tokens_BxS: jax.Array, compute: Compute) -> jax.Array:
    """Rows of the embedding, [B, S, M] in the compute dtype.

    On a mesh, the devices that share the table's columns look up each other's tokens in their own columns, and
    exchange the results: activations travel, the table does not.
    """
    mesh, dtype = compute.mesh, jnp.dtype(compute.dtype)
    columns, vocabulary = used_axes(mesh, SHARED), used_axes(mesh, ("tensor",))

    def local(table, tokens):
        shape = tokens.shape
        tokens = gather(tokens[None], mesh, SHARED, 0)  # [devices, B, S]
        if vocabulary:
            tokens = tokens - jax.lax.axis_index(vocabulary[0]) * table.shape[0]
        mine = (tokens >= 0) & (tokens < table.shape[0])
        x = jnp.where(mine[..., None], table[jnp.where(mine, tokens, 0)], 0).astype(dtype)
        if columns:
            x = jax.lax.all_to_all(x, columns, split_axis=0, concat_axis=3, tiled=True)
        return (jax.lax.psum(x, vocabulary) if vocabulary else x).reshape(*shape, -1)

    specs = (mesh_spec(("vocab", "embed")), mesh_spec(("batch", "sequence")))
    call = per_device(local, mesh, specs, mesh_spec(("batch", "sequence", None)))
    return call(embedding_VxM, tokens_BxS)


def _recomputed(remat: str):
    """The layer, keeping for the backward pass what the policy of `Compute.remat` says."""
    policies = jax.checkpoint_policies
    if remat == "full":
        policy = policies.nothing_saveable
    elif remat == "attention":
        policy = policies.save_only_these_names(ATTENTION_RESULT)
    elif remat == "products":
        policy = policies.save_only_these_names(ATTENTION_RESULT, PRODUCT)
    else:
        policy = policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[ATTENTION_RESULT],
            names_which_can_be_offloaded=[LAYER_INPUT],
            offload_src="device",
            offload_dst="pinned_host",
        )
    return nn.remat(_Layer, prevent_cse=False, policy=policy)


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


def working_copy(params: Params, compute: Compute) -> Params:
    """`params` with the layers' matrices in the compute dtype, as the forward pass uses them.

    Made once for all micro-batches of a step; its gradients take half the memory of float32 ones.  Norms, the
    router, embedding and head stay float32: their products or sums are.
    """

    def cast(path: tuple, w: jax.Array) -> jax.Array:
        small = path[-1].key in ("scale", "router")
        return w if small else w.astype(compute.dtype)

    return params | {"layers": jax.tree_util.tree_map_with_path(cast, params["layers"])}


def param_shardings(config: ModelConfig, mesh: Mesh) -> Params:
    """The tree of `init_params` with a NamedSharding for each array.

    Raises InputError when a dimension cannot be cut into as many equal parts as its mesh axes have devices.
    """
    return tree_shardings(logical_axes(config), param_shapes(config), mesh)


def hidden_states(
    params: Params,
    config: ModelConfig,
    tokens_BxS: jax.Array,
    positions_BxS: jax.Array,
    segments_BxS: jax.Array,
    compute: Compute = Compute(),
    replay_LxBxSxk: jax.Array | None = None,
) -> jax.Array:
    """Final-normed hidden states [B, S, D] in the compute dtype of packed rows (int32 inputs).

    Tokens see earlier tokens of their own segment; segment 0 is padding and its output has no meaning.  Within
    a row, segments follow each other.  `replay_LxBxSxk` (integers) gives the experts that the engine's router
    chose, see `moe.route`.
    """
    model = _Qwen3(config, compute)
    return model.apply({"params": params}, tokens_BxS, positions_BxS, segments_BxS, replay_LxBxSxk)


def expert_choices(
    params: Params,
    config: ModelConfig,
    tokens_BxS: jax.Array,
    positions_BxS: jax.Array,
    segments_BxS: jax.Array,
) -> jax.Array:
    """The experts that the router of each layer chooses for each token, best first: int32 [L, B, S, k]."""
    inputs = (tokens_BxS, positions_BxS, segments_BxS)
    _, collected = _Qwen3(config, Compute()).apply({"params": params}, *inputs, mutable=["stats"])
    return collected["stats"]["layers"]["moe"]["experts"][0]


def expert_loads(
    params: Params,
    config: ModelConfig,
    tokens_BxS: jax.Array,
    positions_BxS: jax.Array,
    segments_BxS: jax.Array,
) -> jax.Array:
    """Share of the routed pairs of real tokens that each expert receives, float32 [L, E]."""
    chosen_LxBxSxk = expert_choices(params, config, tokens_BxS, positions_BxS, segments_BxS)
    return jax.vmap(lambda e: expert_load(e, segments_BxS != 0, config.num_experts))(chosen_LxBxSxk)


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
    layer = _Layer(config, Compute(dtype=jnp.dtype(dtype).name))
    for i, blocks in enumerate(past):
        weights = {"params": jax.tree.map(lambda w, i=i: w[i], params["layers"])}
        x, kv = layer.apply(weights, x, None, blocks, positions_BxC, valid_BxC.astype(jnp.int32))
        new.append(kv)
    return rms_norm(x, params["final_norm"]["scale"], config.rms_eps), new


def head_matrix(params: Params, config: ModelConfig) -> jax.Array:
    """float32 [D, V] with logits = hidden @ head, to be multiplied in float32 (P16)."""
    return params["embedding"].T if config.tie_embeddings else params["head"]


def _init(config: ModelConfig, key: jax.Array) -> Params:
    one = jnp.ones((1, 1), jnp.int32)
    return _Qwen3(config, Compute()).init(key, one, one, one)["params"]
