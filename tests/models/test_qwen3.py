import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import DENSE, MOE, params_of, row, shapes_of

from carr_jax.models import qwen3
from carr_jax.models.attention import Past
from carr_jax.models.compute import Compute
from carr_jax.models.qwen3 import (
    expert_choices,
    expert_loads,
    extend,
    head_matrix,
    hidden_states,
    init_params,
    logical_axes,
    rms_norm,
)

BOTH = pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
IDS = np.random.default_rng(5).integers(0, 61, 11)


forward = jax.jit(hidden_states, static_argnames=("config", "compute"))
continued = jax.jit(extend, static_argnames="config")


def hidden(config, inputs, compute=Compute()):
    return np.asarray(forward(params_of(config), config, *inputs, compute))


def test_rms_norm_matches_numpy_with_float32_statistics():
    x = np.random.default_rng(0).standard_normal((3, 8)) * 5
    scale = np.linspace(0.5, 2, 8)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(rms_norm(jnp.asarray(x, jnp.float32), scale, 1e-6), expected, rtol=1e-5)
    big = jnp.full((1, 4096), 3e2, jnp.bfloat16)  # the sum of squares is far beyond what bfloat16 adds up
    np.testing.assert_allclose(np.asarray(rms_norm(big, jnp.ones(4096), 1e-6), np.float32), 1.0)


def numpy_forward(params, config, ids):
    """One dense row in float64, written from the equations."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    half, d = config.head_dim // 2, config.head_dim
    angle = np.arange(len(ids))[:, None] * config.rope_theta ** (-np.arange(0, d, 2) / d)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_eps) * scale

    def turn(x):
        a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = p["embedding"][ids]
    for i in range(config.num_layers):
        w = jax.tree.map(lambda a, i=i: a[i], p["layers"])
        a, h = w["attention"], norm(x, w["attention_norm"]["scale"])
        q, k, v = (np.einsum("sm,mhd->shd", h, a[n]) for n in "qkv")
        q, k = turn(norm(q, a["q_norm"]["scale"])), turn(norm(k, a["k_norm"]["scale"]))
        k, v = (np.repeat(y, config.num_heads // config.num_kv_heads, axis=1) for y in (k, v))
        scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(d)
        scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hst,thd,hdm->sm", weights, v, a["o"])
        h = norm(x, w["mlp_norm"]["scale"])
        gate = h @ w["mlp"]["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp"]["up"])) @ w["mlp"]["down"]
    return norm(x, p["final_norm"]["scale"])


def test_whole_model_matches_numpy():
    np.testing.assert_allclose(
        hidden(DENSE, row(IDS))[0], numpy_forward(params_of(DENSE), DENSE, IDS), atol=2e-5
    )


@BOTH
def test_packed_rows_equal_single_rows(config):
    parts = [IDS[:4], IDS[4:9], IDS[9:]]
    packed = [np.concatenate(x, axis=1) for x in zip(*map(row, parts), strict=True)]
    packed[2] = np.repeat([1, 2, 3], [4, 5, 2])[None].astype(np.int32)
    alone = np.concatenate([hidden(config, row(p, 11))[0, : len(p)] for p in parts])
    np.testing.assert_allclose(hidden(config, packed)[0], alone, atol=1e-5)


@BOTH
def test_padding_on_either_side_changes_nothing(config):
    plain = hidden(config, row(IDS))[0]
    right = hidden(config, row(IDS, 14))[0, :11]
    tokens, positions, segments = (np.pad(a, ((0, 0), (3, 0))) for a in row(IDS))
    left = hidden(config, (tokens, positions, segments))[0, 3:]
    np.testing.assert_allclose(right, plain, atol=1e-5)
    np.testing.assert_allclose(left, plain, atol=1e-5)


@BOTH
def test_remat_changes_neither_output_nor_gradient(config):
    def loss(params, remat):
        return jnp.sum(hidden_states(params, config, *row(IDS), Compute(remat=remat)) ** 3)

    grad = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    kept, again = (grad(params_of(config), remat) for remat in ("products", "full"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), kept, again)


@BOTH
def test_products_are_not_computed_again(config):
    """With the products kept, the backward pass has as few of them as without recomputation."""

    def products(layer):
        def loss(params):
            return jnp.sum(hidden_states(params, config, *row(IDS), Compute()) ** 3)

        with mock.patch.object(qwen3, "_recomputed", lambda remat: layer(remat)):
            return str(jax.make_jaxpr(jax.grad(loss))(params_of(config))).count("dot_general")

    assert products(qwen3._recomputed) == products(lambda remat: qwen3._Layer)


@BOTH
def test_bfloat16_compute_is_close_and_parameters_stay_float32(config):
    exact, rough = hidden(config, row(IDS)), hidden(config, row(IDS), Compute(dtype="bfloat16"))
    assert rough.dtype == jnp.bfloat16
    error = np.abs(rough.astype(np.float32) - exact).mean() / np.abs(exact).mean()
    assert 1e-4 < error < 0.1
    assert {x.dtype for x in jax.tree.leaves(shapes_of(config))} == {jnp.dtype("float32")}


@BOTH
@pytest.mark.parametrize("chunks", [(3, 5, 3), (1,) * 11], ids=["three", "single"])
def test_extending_by_chunks_equals_the_whole_row(config, chunks):
    heads, d = (config.num_layers, 1, config.num_kv_heads), config.head_dim
    k, v = np.zeros((*heads, d, 16), np.float32), np.zeros((*heads, 16, d), np.float32)
    outputs, done = [], 0
    for n in chunks:
        tokens, positions, segments = row(IDS[done : done + n], max(chunks))
        past = [(Past(k[i].copy(), v[i].copy(), np.array([done])),) for i in range(config.num_layers)]
        out, new = continued(params_of(config), config, tokens, positions + done, segments == 1, past)
        for i, (new_k, new_v) in enumerate(new):
            k[i][..., done : done + n], v[i][..., done : done + n, :] = new_k[..., :n], new_v[..., :n, :]
        outputs.append(out[0, :n])
        done += n
    np.testing.assert_allclose(np.concatenate(outputs), hidden(config, row(IDS))[0], atol=1e-5)


CHANGES = {
    "vocab_size": 64,
    "d_model": 24,
    "num_layers": 3,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
    "d_ff": 32,
    "rope_theta": 5e6,
    "rms_eps": 1e-2,
    "tie_embeddings": False,
    "num_experts": 8,
    "experts_per_token": 1,
    "d_ff_expert": 16,
    "norm_topk_prob": False,
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(DENSE) if f.name != "max_position"])
def test_every_config_field_is_read(field):
    """(max_position bounds the engine's context: test_embedded.py.)"""
    base = MOE if field in ("num_experts", "experts_per_token", "d_ff_expert", "norm_topk_prob") else DENSE
    changed = dataclasses.replace(base, **{field: CHANGES[field]})

    def shapes(config):
        return {jax.tree_util.keystr(k): v.shape for k, v in jax.tree.leaves_with_path(shapes_of(config))}

    if shapes(base) != shapes(changed):
        return
    params = params_of(base)
    outs = [np.asarray(forward(params, c, *row(IDS))) for c in (base, changed)]
    assert np.abs(outs[0] - outs[1]).max() > 1e-3


@BOTH
def test_parameters_are_a_plain_tree_with_one_logical_name_per_dimension(config):
    params, axes = shapes_of(config), logical_axes(config)
    jax.tree.map(
        lambda x, spec: None if len(spec) == x.ndim else pytest.fail(f"{spec} {x.shape}"), params, axes
    )
    assert set(params) == {"embedding", "layers", "final_norm"} | ({"head"} if config is MOE else set())
    assert {spec[0] for spec in jax.tree.leaves(axes["layers"])} == {"layers"}
    assert {x.shape[0] for x in jax.tree.leaves(params["layers"])} == {config.num_layers}


def test_init_scales_by_fan_in_and_keys_decide_the_draw():
    keys = (jax.random.key(seed, impl="rbg") for seed in (0, 1))  # compiles several times faster than threefry
    params, other = (init_params(MOE, key) for key in keys)
    layers = params["layers"]
    assert abs(layers["moe"]["down"].std() * 12**0.5 - 1) < 0.1
    assert abs(layers["attention"]["o"].std() * 32**0.5 - 1) < 0.15
    assert not np.array_equal(layers["moe"]["gate"][0], layers["moe"]["gate"][1])
    assert not np.array_equal(params["head"], other["head"])
    assert (layers["mlp_norm"]["scale"] == 1).all()


def test_head_is_tied_or_its_own_matrix():
    assert head_matrix(params_of(DENSE), DENSE).shape == head_matrix(params_of(MOE), MOE).shape == (16, 61)
    np.testing.assert_array_equal(head_matrix(params_of(DENSE), DENSE), params_of(DENSE)["embedding"].T)


def test_expert_loads_ignore_padding():
    loads_of = jax.jit(expert_loads, static_argnames="config")
    tokens, positions, segments = row(IDS[:8], 11)
    loads = loads_of(params_of(MOE), MOE, tokens, positions, segments)
    assert loads.shape == (2, 4)
    np.testing.assert_allclose(loads.sum(-1), 1.0, rtol=1e-6)
    other_padding = np.where(segments, tokens, 17)
    again, whole = (
        loads_of(params_of(MOE), MOE, other_padding, positions, s) for s in (segments, segments * 0 + 1)
    )
    np.testing.assert_array_equal(again, loads)
    assert np.abs(whole - loads).max() > 0.01


def test_replayed_experts_reach_every_layer():
    """-1 leaves the choice to the router; other experts in the last layer alone already change the result."""
    run = jax.jit(hidden_states, static_argnums=(1, 5))
    free = run(params_of(MOE), MOE, *row(IDS), Compute())
    replay = np.full((MOE.num_layers, 1, len(IDS), MOE.experts_per_token), -1, np.int32)
    np.testing.assert_array_equal(run(params_of(MOE), MOE, *row(IDS), Compute(), replay), free)
    for layer in range(MOE.num_layers):
        other = replay.copy()
        other[layer] = [0, 1]
        assert np.abs(run(params_of(MOE), MOE, *row(IDS), Compute(), other) - free).max() > 1e-3


def test_expert_choices_are_those_of_the_forward_pass():
    """Replayed they change nothing; each is a choice of k different experts; the loads count them."""
    inputs = row(IDS)
    chosen = np.asarray(jax.jit(expert_choices, static_argnums=1)(params_of(MOE), MOE, *inputs))
    assert chosen.shape == (MOE.num_layers, 1, len(IDS), MOE.experts_per_token) and chosen.dtype == np.int32
    assert (np.diff(np.sort(chosen, -1), axis=-1) > 0).all()
    run = jax.jit(hidden_states, static_argnums=(1, 5))
    replayed = run(params_of(MOE), MOE, *inputs, Compute(), chosen)
    np.testing.assert_allclose(replayed, run(params_of(MOE), MOE, *inputs, Compute()), atol=1e-6)
    counts = np.stack([np.bincount(layer.ravel(), minlength=4) for layer in chosen])
    np.testing.assert_allclose(expert_loads(params_of(MOE), MOE, *inputs), counts / chosen[0].size, rtol=1e-6)
