"""MO-07, MO-09: the experts that an engine chose go through packing, the mesh and the step to their tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_step import CONFIG, EXPERTS, quick_compiles, trajectories

from carr_jax.learning import step as steps
from carr_jax.learning.batch import Example, contributing, from_trajectory, pack, replayed
from carr_jax.learning.logprobs import token_logprobs
from carr_jax.models import qwen3
from carr_jax.models.compute import Compute
from carr_jax.records import End, Trajectory
from carr_jax.sharding import MESH_AXES, make_mesh

__all__ = ["quick_compiles"]  # the fixture: compiling is nearly all that these tests do

LAYERS, CHOSEN = EXPERTS.num_layers, EXPERTS.experts_per_token


@functools.cache
def parameters():
    return qwen3.init_params(EXPERTS, jax.random.key(0))


choices = jax.jit(qwen3.expert_choices, static_argnames="config")


def own_routes(example):
    """int16 [N, L, k] as an engine with the same weights reports them: nothing for the last token."""
    n = example.ids.size
    row = (np.pad(example.ids, (0, 16 - n)), np.arange(16), np.arange(16) < n)
    chosen_LxBxSxk = choices(parameters(), EXPERTS, *(np.int32(x)[None] for x in row))
    routes = np.array(chosen_LxBxSxk[:, 0, :n], np.int16).swapaxes(0, 1)
    routes[-1] = -1
    return routes


def other_routes(example):
    """Two different experts for each token and layer, at random."""
    rng = np.random.default_rng(example.ids.size)
    first = rng.integers(0, 8, (example.ids.size, LAYERS))
    routes = np.stack([first, (first + rng.integers(1, 8, first.shape)) % 8], -1).astype(np.int16)
    routes[-1] = -1
    return routes


def with_routes(routes_of):
    return [dataclasses.replace(e, routes=routes_of(e)) for e in trajectories()]


def one_step(examples, sizes=(), together=True):
    """State and metrics of one step from the same weights, on a mesh of `sizes`."""
    mesh = make_mesh(dict.fromkeys(MESH_AXES, 1) | dict(sizes))
    config = dataclasses.replace(CONFIG, compute=Compute(mesh=mesh), logprob_chunk=5)
    state = steps.init_state(jax.device_put(parameters(), qwen3.param_shardings(EXPERTS, mesh)), config)
    batch = steps.place(pack(examples, 16, 4, 3, "global_tokens", together=together), mesh)
    state, metrics = jax.block_until_ready(compiled(config)(state, batch))
    return state, {k: float(v) for k, v in metrics.items()}


@functools.cache
def compiled(config):
    return steps.make_train_step(EXPERTS, config, "policy")


@functools.cache
def without():
    return one_step(trajectories())


@functools.cache
def with_others():
    return one_step(with_routes(other_routes))


def assert_same_step(a, b, atol=1e-6):
    """Metrics and moments (of the first step: the gradient and its square)."""
    assert a[1] == pytest.approx(b[1], rel=1e-4, abs=1e-6)
    for x, y in zip(jax.tree.leaves(a[0].opt_state), jax.tree.leaves(b[0].opt_state), strict=True):
        np.testing.assert_allclose(x, y, atol=atol)


def test_replaying_the_models_own_choices_changes_nothing():
    assert_same_step(one_step(with_routes(own_routes)), without())


def test_other_experts_give_another_step():
    (_, own), (_, other) = without(), with_others()
    assert abs(own["learn/loss"] - other["learn/loss"]) > 1e-3
    assert abs(own["learn/grad_norm"] - other["learn/grad_norm"]) > 1e-3


def test_the_loss_is_that_of_each_sequence_alone():
    """Other experts, the sequences one by one through the model's own functions."""
    total = 0.0
    kept = contributing(with_routes(other_routes))
    for e in kept:
        logp = logprobs_alone(e)[e.mask[1:] > 0]
        ratio = np.exp(logp - e.logprobs[1:][e.mask[1:] > 0])
        total += (np.where((ratio >= 0.5) & (ratio <= 2), ratio, 0) * e.advantage).sum()
    assert with_others()[1]["learn/loss"] == pytest.approx(-total / sum(e.targets for e in kept), rel=1e-4)


def logprobs_alone(e):
    n = e.ids.size
    row = [np.pad(x, (0, 16 - n)).astype(np.int32)[None] for x in (e.ids, np.arange(n), np.ones(n))]
    replay = np.pad(e.routes, ((0, 16 - n), (0, 0), (0, 0)), constant_values=-1).swapaxes(0, 1)[:, None]
    targets = np.pad(e.ids[1:], (0, 17 - n)).astype(np.int32)[None]
    return np.asarray(_logprobs(parameters(), *row, targets, replay.astype(np.int32)))[0, : n - 1]


@jax.jit
def _logprobs(params, tokens, positions, segments, targets, replay):
    hidden = qwen3.hidden_states(params, EXPERTS, tokens, positions, segments, Compute(), replay)
    head = qwen3.head_matrix(params, EXPERTS)
    return token_logprobs(hidden, head, targets, jnp.ones_like(targets, bool), 1.0, 16)[0]


def test_packed_equals_unpacked():
    assert_same_step(one_step(with_routes(other_routes), together=False), with_others())


@pytest.mark.parametrize("sizes", [dict(fsdp=2, context=2), dict(expert=2, context=2)], ids=str)
def test_four_devices_equal_one(sizes):
    assert_same_step(one_step(with_routes(other_routes), sizes), with_others())


def test_unknown_rows_choose_anew():
    """Rows of -1, numbers that no expert has, and sequences without any routes beside some with."""

    def gaps(e):
        routes = own_routes(e)
        routes[::2, 0], routes[1::3, 1] = -1, [3, 8]
        return routes

    examples = with_routes(gaps)
    examples[::3] = trajectories()[::3]
    assert_same_step(one_step(examples), without())


def test_a_batch_without_routes_has_no_array_for_them():
    batch = pack(trajectories(), 16, 4, 2, "global_tokens")
    assert batch.routes is None and "routes" not in steps.batch_arrays(batch)


def test_rows_of_the_batch_by_hand():
    examples = with_routes(other_routes)
    batch = pack(examples, 16, 4, 2, "global_tokens")
    assert batch.routes.dtype == np.int16 and batch.routes.shape == (2, 4, 16, LAYERS * CHOSEN)
    assert (batch.routes[batch.segments == 0] == -1).all()
    for e in contributing(examples):
        starts = np.argwhere(batch.positions == 0)
        m, r, t = next(
            (m, r, t) for m, r, t in starts if np.array_equal(batch.tokens[m, r, t : t + e.ids.size], e.ids)
        )
        np.testing.assert_array_equal(batch.routes[m, r, t : t + e.ids.size], e.routes.reshape(e.ids.size, -1))


def test_the_share_of_replayed_predictions_by_hand():
    """Sequences of six and four tokens: eight predictions, of which the third of the first is unknown."""
    examples = [
        Example(
            np.arange(n, dtype=np.int32),
            np.ones(n, np.int8),
            np.zeros(n, np.float32),
            1.0,
            str(n),
            np.zeros((n, LAYERS, CHOSEN), np.int16),
        )
        for n in (6, 4)
    ]
    examples[0].routes[2] = examples[0].routes[-1] = examples[1].routes[-1] = -1
    assert replayed(pack(examples, 16, 1, 1, "global_tokens")) == 7 / 8


def test_routes_of_another_model_are_refused():
    deeper = [
        dataclasses.replace(e, routes=np.zeros((e.ids.size, LAYERS + 1, CHOSEN), np.int16))
        for e in trajectories()
    ]
    with pytest.raises(ValueError, match="reports 6 experts for a token, this model has 2 in each of 2 layers"):
        one_step(deeper)
    with pytest.raises(ValueError, match=r"different shapes.*\(2, 2\), \(3, 2\)"):
        pack([*with_routes(other_routes), *deeper], 16, 4, 9, "global_tokens")
    with pytest.raises(ValueError, match="has 16 ids, but routes of 15 tokens"):
        pack(
            [dataclasses.replace(e, routes=e.routes[:15]) for e in with_routes(other_routes)][:1],
            16,
            1,
            1,
            "global_tokens",
        )


def test_an_example_takes_the_routes_of_its_trajectory():
    arrays = (np.arange(3, dtype=np.int32), np.int8([0, 1, 1]), np.zeros(3, np.float32), np.zeros(3, np.int32))
    routes = np.zeros((3, LAYERS, CHOSEN), np.int16)
    assert from_trajectory(Trajectory("q", 0, 1, *arrays, (), End.ANSWERED, "", routes), 1.0).routes is routes


def test_the_step_can_be_traced_with_routes():
    mesh = make_mesh(dict.fromkeys(MESH_AXES, 1) | dict(fsdp=2, context=2))
    config = dataclasses.replace(CONFIG, compute=Compute(mesh=mesh))
    text = {
        r: str(steps.trace_train_step(EXPERTS, config, "policy", (2, 4, 16), r).jaxpr) for r in (False, True)
    }
    assert "i16[2,4,16,4]" in text[True] and "i16" not in text[False]
