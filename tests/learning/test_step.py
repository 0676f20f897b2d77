"""P02, P03, P12, P21 to P23, P25, P27: the accumulated step, on toy losses and on a very small Qwen3."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carr_jax.learning import step as steps
from carr_jax.learning.batch import Example, pack, supervised_example
from carr_jax.learning.logprobs import token_logprobs
from carr_jax.learning.losses import Statistics
from carr_jax.models import qwen3
from carr_jax.models.compute import Compute
from carr_jax.models.config import PRESETS
from carr_jax.sharding import MESH_AXES, make_mesh

MODEL = dataclasses.replace(
    PRESETS["tiny"], vocab_size=32, d_model=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, d_ff=32
)
CONFIG = steps.LearnConfig(lr=1e-2, logprob_chunk=16)

# ---------------------------------------------------------------------------------------- accumulation, toys


def toy_loss(params, micro):
    """Weighted sum of a loss that is linear in the parameter: d loss / d x = sum of weights * values."""
    weights = micro["weights"]
    loss = jnp.sum(weights * micro["values"] * params["x"])
    return loss, Statistics({"tokens": jnp.sum(weights != 0.0), "weight": weights.sum()}, {"largest": loss})


def toy_arrays(micro_batches):
    """Ten tokens of weight 1/10, the first two with loss 1, dealt to micro-batches in order."""
    values = np.array([1.0] * 2 + [0.0] * 8, np.float32)
    splits = np.split(np.arange(10), {1: [], 2: [2], 5: [2, 4, 6, 8]}[micro_batches])
    arrays = {k: np.zeros((5, 10), np.float32) for k in ("weights", "values")}
    for i, tokens in enumerate(splits):
        arrays["weights"][i, : tokens.size], arrays["values"][i, : tokens.size] = 0.1, values[tokens]
    return arrays


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_loss_and_gradient_do_not_depend_on_the_split(micro_batches):  # P02, P03
    accumulate = jax.jit(functools.partial(steps.accumulate, toy_loss))
    grads, loss, statistics = accumulate({"x": jnp.float32(1)}, toy_arrays(micro_batches), micro_batches)
    assert float(loss) == pytest.approx(0.2, rel=1e-6)
    assert float(grads["x"]) == pytest.approx(0.2, rel=1e-6)  # sgd(1) would step by -0.2
    assert float(statistics.sums["tokens"]) == 10
    assert float(statistics.maxima["largest"]) == pytest.approx(0.2, rel=1e-6)


def test_only_filled_micro_batches_count():
    arrays = toy_arrays(2)
    arrays["values"][2:], arrays["weights"][2:] = np.nan, 1.0
    grads, loss, _ = jax.jit(functools.partial(steps.accumulate, toy_loss))({"x": jnp.float32(1)}, arrays, 2)
    assert float(loss) == float(grads["x"]) == pytest.approx(0.2, rel=1e-6)


@pytest.mark.parametrize("gradient, weight", [(np.nan, 1.0), (np.inf, 1.0), (-np.inf, 1.0), (1.0, 0.0)])
def test_skipped_step_changes_no_bit(gradient, weight):  # P23, P27
    state = steps.init_state({"w": jnp.ones((2, 2)), "v": jnp.ones(2)}, CONFIG)
    good = {"w": jnp.full((2, 2), 0.3), "v": jnp.ones(2)}
    apply = jax.jit(functools.partial(steps.apply_gradients, tx=CONFIG.optimizer()))
    state, _, taken = apply(state, good, jnp.float32(1))
    assert taken
    after, _, taken = apply(state, {**good, "v": jnp.array([1.0, gradient])}, jnp.float32(weight))
    assert not taken
    assert_same_bits(after, state)
    again, _, taken = apply(after, good, jnp.float32(1))
    assert taken and int(again.step) == 2


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_init_refuses_bf16_master_weights():
    with pytest.raises(ValueError, match="parameter a/w is bfloat16"):
        steps.init_state({"a": {"w": jnp.ones(2, jnp.bfloat16)}}, CONFIG)


# --------------------------------------------------------------------------------------------- a small Qwen3


@pytest.fixture(scope="module", autouse=True)
def quick_compiles():
    """Compiling is nearly all that these tests do."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def params():
    return jax.jit(qwen3.init_params, static_argnums=0)(MODEL, jax.random.key(0))


@functools.cache
def train_step(loss):
    return steps.make_train_step(MODEL, CONFIG, loss)


@pytest.fixture(scope="module")
def examples(params):
    """Six trajectories of two groups, with the model's own log-probs plus a little engine noise."""
    rng = np.random.default_rng(0)
    made = []
    for i, n in enumerate((7, 5, 4, 6, 3, 7)):
        ids = rng.integers(0, 32, n).astype(np.int32)
        mask = np.array([0] + [int(x) for x in rng.integers(0, 2, n - 2)] + [1], np.int8)
        logp = np.append(0, logprobs_alone(params, ids)) + rng.normal(0, 0.05, n)
        made.append(
            Example(ids, mask, np.where(mask, logp, 0).astype(np.float32), (-1.0) ** i * (1 + i), "ab"[i % 2])
        )
    return made


def logprobs_alone(params, ids, left=0, right=0):
    """Log-probs of ids[1:], the sequence alone in a row of 8, with padding to its left or right."""
    row = np.zeros((1, 8), np.int32)
    at = slice(left, left + len(ids))
    tokens, positions, segments, targets = row.copy(), row.copy(), row.copy(), row.copy()
    tokens[0, at], positions[0, at], segments[0, at] = ids, np.arange(len(ids)), 1
    targets[0, left : left + len(ids) - 1] = ids[1:]
    return np.asarray(row_logprobs(params, tokens, positions, segments, targets))[0, left : left + len(ids) - 1]


@jax.jit
def row_logprobs(params, tokens, positions, segments, targets):
    hidden = qwen3.hidden_states(params, MODEL, tokens, positions, segments)
    return token_logprobs(
        hidden, qwen3.head_matrix(params, MODEL), targets, jnp.ones_like(targets, bool), 1.0, 16
    )[0]


def packed(examples, row_length=32):
    """One row per micro-batch, padded to [6, 1, 32] so that all tests share one compiled step."""
    batch = pack(examples, row_length, 1, 6, "global_tokens")
    wider = ((0, 0), (0, 0), (0, 32 - row_length))
    return dataclasses.replace(batch, **{k: np.pad(v, wider) for k, v in steps.batch_arrays(batch).items()})


def run(params, batch):
    state, metrics = train_step("policy")(steps.init_state(params, CONFIG), batch)
    return state, {k: float(v) for k, v in metrics.items()}


def test_padding_does_not_move_logprobs(params):  # P21
    ids = np.array([3, 9, 27, 5], np.int32)
    want = logprobs_alone(params, ids)
    for left, right in ((3, 1), (0, 4), (4, 0)):
        np.testing.assert_allclose(logprobs_alone(params, ids, left, right), want, atol=1e-5)


def test_metrics_by_hand(params, examples):  # P12, P22: packed equals unpacked
    """Every metric of a packed batch against the sequences one by one."""
    _, metrics = run(params, packed(examples, 14))
    new = np.concatenate([logprobs_alone(params, e.ids)[e.mask[1:] > 0] for e in examples])
    engine = np.concatenate([e.logprobs[1:][e.mask[1:] > 0] for e in examples])
    advantage = np.concatenate([[e.advantage] * e.targets for e in examples])
    ratio = np.exp(new - engine)
    assert metrics["learn/tokens"] == len(new)
    assert metrics["learn/loss"] == pytest.approx(-(ratio * advantage).mean(), abs=1e-5)
    assert metrics["learn/ratio_mean"] == pytest.approx(ratio.mean(), abs=1e-5)
    assert metrics["learn/logprob_diff"] == pytest.approx(np.abs(new - engine).mean(), abs=1e-5)
    assert metrics["learn/logprob_diff_max"] == pytest.approx(np.abs(new - engine).max(), abs=1e-5)
    outside = (ratio < 0.9) | (ratio > 1.1)
    assert metrics["learn/ratio_outside_10"] == pytest.approx(outside.mean()) and outside.any()
    assert metrics["learn/ratio_outside_half"] == 0
    means = [np.mean((logprobs_alone(params, e.ids) - e.logprobs[1:])[e.mask[1:] > 0]) for e in examples]
    outliers = np.mean([not 0.9 <= np.exp(m) <= 1.1 for m in means])
    assert metrics["learn/sequence_outliers"] == pytest.approx(outliers)
    assert metrics["learn/clipped"] == metrics["learn/icepop_masked"] == metrics["learn/skipped"] == 0
    assert 0 < metrics["learn/entropy"] < np.log(32) and metrics["learn/grad_norm"] > 0
    assert metrics["learn/lr"] == pytest.approx(1e-2)


def test_layouts_give_the_same_step(params, examples):  # P02
    """One micro-batch, three, or five: the same metrics and the same gradient in the first moments."""
    batches = [packed(examples, length) for length in (32, 14, 7)]
    assert [b.micro_batches for b in batches] == [1, 3, 5]
    (state, metrics), *others = (run(params, b) for b in batches)
    for other, m in others:
        assert m == pytest.approx(metrics, rel=1e-4, abs=1e-6)
        for x, y in zip(jax.tree.leaves(state.opt_state), jax.tree.leaves(other.opt_state), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6)


def test_sft_learns_and_counts(params):
    ids = np.array([1, 2, 3, 4, 5, 6], np.int32)
    batch = packed([supervised_example(ids, np.array([0, 0, 1, 1, 1, 1]), "a")])
    state, first = steps.init_state(params, CONFIG), None
    for _ in range(5):
        state, metrics = train_step("sft")(state, batch)
        first = first or float(metrics["learn/loss"])
    assert first == pytest.approx(-logprobs_alone(params, ids)[1:].mean(), abs=1e-5)
    assert float(metrics["learn/loss"]) < first - 0.5
    assert int(state.step) == 5 and float(metrics["learn/tokens"]) == 4
    assert "learn/ratio_mean" not in metrics


def test_empty_batch_is_skipped(params):  # P23, P25
    state = steps.init_state(params, CONFIG)
    before = jax.tree.map(np.array, state)
    flat = [supervised_example(np.arange(4), np.ones(4), "a")]
    flat = [dataclasses.replace(e, advantage=0.0) for e in flat]
    after, metrics = train_step("policy")(state, packed(flat))
    assert_same_bits(after, before)
    assert float(metrics["learn/skipped"]) == 1 and float(metrics["learn/tokens"]) == 0
    assert all(np.isfinite(float(v)) for v in metrics.values())


def test_nan_advantage_on_the_device_is_skipped(params, examples):  # P27
    state = steps.init_state(params, CONFIG)
    before = jax.tree.map(np.array, state)
    batch = packed(examples, 14)
    batch = dataclasses.replace(batch, advantages=np.full_like(batch.advantages, np.nan))
    after, metrics = train_step("policy")(state, batch)
    assert_same_bits(after, before)
    assert float(metrics["learn/skipped"]) == 1


LARGER = dataclasses.replace(MODEL, num_heads=4, num_kv_heads=2)
EXPERTS = dataclasses.replace(
    LARGER, d_ff=0, tie_embeddings=False, num_experts=8, experts_per_token=2, d_ff_expert=8, norm_topk_prob=True
)
LAYOUTS = {
    "fsdp": (dict(fsdp=4), {}),
    "data and fsdp": (dict(data=2, fsdp=2), {}),
    "context": (dict(context=4), {}),
    "fsdp and context": (dict(fsdp=2, context=2), dict(remat="attention")),
    "fsdp and tensor": (dict(fsdp=2, tensor=2), dict(remat="full")),
    "expert and context": (dict(expert=2, context=2), dict(remat="attention")),
    "offload": (dict(fsdp=2), dict(remat="offload")),
}


@functools.cache
def step_on_one_device(model):
    return one_step(model, {}, {})


def one_step(model, sizes, how, **learn):
    """New state and metrics of one step from seed-0 weights on a mesh of `sizes`."""
    mesh = make_mesh(dict.fromkeys(MESH_AXES, 1) | sizes)
    config = dataclasses.replace(CONFIG, compute=Compute(mesh=mesh, **how), logprob_chunk=5, **learn)
    params = jax.device_put(qwen3.init_params(model, jax.random.key(0)), qwen3.param_shardings(model, mesh))
    batch = pack(trajectories(), 16, 4, 2, "global_tokens")
    state = steps.init_state(params, config)
    before = jax.tree.map(lambda x: x.sharding, state)
    step = steps.make_train_step(model, config, "policy")
    after, metrics = jax.block_until_ready(step(state, steps.place(batch, mesh)))
    assert jax.tree.map(lambda x: x.sharding, after) == before
    return after, {k: float(v) for k, v in metrics.items()}


def trajectories():
    """Sequences of very different lengths, with log-probs that a correction keeps."""
    rng = np.random.default_rng(1)
    lengths = (16, 9, 5, 4, 12, 3, 16, 7, 6, 11)
    masks = [np.array([0, *rng.integers(0, 2, n - 2), 1], np.int8) for n in lengths]
    return [
        Example(
            rng.integers(0, 32, n), m, np.where(m, -3.4, 0).astype(np.float32), (-1.0) ** i * (1 + i), i % 2
        )
        for i, (n, m) in enumerate(zip(lengths, masks, strict=True))
    ]


@pytest.mark.parametrize("model", [LARGER, EXPERTS], ids=["dense", "moe"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_step(model, layout):
    """Meshes, kernels, recomputation: loss, gradient norm and moments as on one device, in fp32."""
    sizes, how = LAYOUTS[layout]
    single, want = step_on_one_device(model)
    after, got = one_step(model, sizes, how)
    assert got["learn/loss"] == pytest.approx(want["learn/loss"], rel=1e-5)
    assert got["learn/grad_norm"] == pytest.approx(want["learn/grad_norm"], rel=1e-5)
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    for x, y in zip(jax.tree.leaves(after.opt_state), jax.tree.leaves(single.opt_state), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)


def test_half_moments_are_half_as_large_and_nearly_the_same():
    exact, _ = step_on_one_device(LARGER)
    half, _ = one_step(LARGER, dict(fsdp=2), {}, moments="bfloat16")
    moments = [x for x in jax.tree.leaves(half.opt_state) if x.ndim]
    assert {x.dtype for x in moments} == {jnp.dtype("bfloat16")}
    assert {x.dtype for x in jax.tree.leaves(half.params)} == {jnp.dtype("float32")}
    for x, y in zip(jax.tree.leaves(half.opt_state), jax.tree.leaves(exact.opt_state), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float32), y, rtol=2**-7, atol=1e-6)
    for x, y in zip(jax.tree.leaves(half.params), jax.tree.leaves(exact.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)  # the first step is taken before anything is rounded


def test_moments_in_host_memory_give_the_same_step():
    exact, want = step_on_one_device(LARGER)
    host, got = one_step(LARGER, dict(fsdp=2), {}, moments="host")
    assert {x.sharding.memory_kind for x in jax.tree.leaves(host.opt_state) if x.ndim} == {"pinned_host"}
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), host.params, exact.params)


def test_a_step_is_one_forward_and_one_backward_pass():
    """No reference pass, no pass for old log-probs: the head's logits are computed once, and once again."""
    config = dataclasses.replace(CONFIG, logprob_chunk=5)
    state = jax.eval_shape(lambda: steps.init_state(qwen3.init_params(LARGER, jax.random.key(0)), config))
    batch = pack(trajectories(), 16, 4, 2, "global_tokens")
    step = functools.partial(steps.train_step, model=LARGER, config=config, loss="policy")
    text = str(jax.make_jaxpr(step)(state, steps.batch_arrays(batch), 2))
    assert len(re.findall(r"f32\[5,32\] = dot_general", text)) == 2
