"""P11, P12, P15 to P19 and P23: the per-token losses and their gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carr_jax.learning import losses

ON = jnp.array([True])


def loss_gradient(ratio, advantage):
    """d loss / d log rho of one token of weight 1."""

    def loss(log_ratio):
        rho = losses.importance_ratio(log_ratio, jnp.zeros(1), ON)
        return -losses.clipped_objective(rho, jnp.array([advantage])).sum()

    return float(jax.grad(loss)(jnp.log(jnp.array([ratio])))[0])


@pytest.mark.parametrize(
    "ratio, advantage, gradient",
    [(1.27, 1, -1.27), (1.30, 1, 0), (0.75, 1, -0.75), (0.79, -1, 0), (0.81, -1, 0.81), (5, -1, 5)],
)
def test_clip_higher(ratio, advantage, gradient):  # P11
    assert loss_gradient(ratio, advantage) == pytest.approx(gradient, rel=1e-5)
    clipped = losses.is_clipped(jnp.array([ratio]), jnp.array([advantage]))
    assert bool(clipped[0]) == (gradient == 0)


def run(logp, engine, advantages, weights, correction="icepop", old=None):
    """Loss, statistics and gradient with respect to the trainer's log-probs."""
    logp, engine, advantages, weights = map(jnp.float32, (logp, engine, advantages, weights))

    def f(logp):
        before = jax.lax.stop_gradient(logp) if old is None else jnp.float32(old)
        k = losses.correction_weight(correction, before, engine, weights != 0)
        return losses.policy_loss(logp, before, engine, -logp, advantages, weights, k)

    (loss, statistics), gradient = jax.value_and_grad(f, has_aux=True)(logp)
    return float(loss), statistics, np.asarray(gradient)


def test_first_inner_step_has_ratio_one():  # P12
    logp = np.linspace(-9, -0.01, 7)
    loss, statistics, gradient = run(logp, logp, [1] * 7, [1 / 7] * 7)
    assert loss == -1.0
    assert float(statistics.sums["clipped"]) == 0
    np.testing.assert_allclose(gradient, -1 / 7, rtol=1e-6)


def test_engine_noise_is_not_clipped():  # P12
    naive = run([-0.7], [-1.0], [1], [1], "none", old=[-1.0])
    assert naive[2][0] == 0 and float(naive[1].sums["clipped"]) == 1
    _, _, tis = run([-0.7], [-1.0], [1], [1], "tis")
    assert tis[0] == pytest.approx(-math.exp(0.3), rel=1e-5)
    k = losses.tis_weight(jnp.array([-0.7]), jnp.array([-1.0]), ON, 1.2)
    assert float(k[0]) == pytest.approx(1.2)


@pytest.mark.parametrize("delta, weight", [(math.log(0.49), 0), (math.log(2.01), 0), (0.3, math.exp(0.3))])
def test_icepop_keeps_the_ratio_inside_and_masks_outside(delta, weight):
    _, statistics, gradient = run([-2.0 + delta], [-2.0], [1], [1])
    assert gradient[0] == pytest.approx(-weight, rel=1e-5)
    assert float(statistics.sums["icepop_masked"]) == (weight == 0)
    assert float(statistics.sums["ratio_mean"]) == pytest.approx(math.exp(delta), rel=1e-5)


def test_unknown_correction():
    with pytest.raises(ValueError, match="icepop, tis, none"):
        losses.correction_weight("icepo", jnp.zeros(1), jnp.zeros(1), ON)


def test_masked_log_ratio_has_no_nan_gradient():  # P17
    def f(x):
        return (losses.importance_ratio(x, jnp.zeros(2), jnp.array([True, False])) * jnp.array([1.0, 0])).sum()

    assert jax.grad(f)(jnp.array([0.0, 1e4])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("filler", [0.0, -5.0, -1e4, -np.inf, np.nan])
def test_environment_tokens_move_nothing(filler):  # P17, P19
    weights = [0.5, 0, 0.5, 0]
    want = run([-1, -5, -2, -5], [-1.1, 0, -2.2, 0], [1, 1, -1, 1], weights)
    got = run([-1, filler, -2, filler], [-1.1, filler, -2.2, 0], [1, filler, -1, 1], weights)
    assert got[0] == want[0]
    assert jax.tree.map(float, got[1]) == jax.tree.map(float, want[1])
    np.testing.assert_array_equal(got[2], want[2])
    assert got[2][1] == got[2][3] == 0 and got[2][0] != 0 and got[2][2] != 0


def test_statistics_by_hand():
    loss, statistics, _ = run([-1, -5, -2], [-1.5, 0, -1], [2, 9, -1], [0.5, 0, 0.5])
    sums = {k: float(v) for k, v in statistics.sums.items()}
    assert loss == pytest.approx(-0.5 * 2 * math.exp(0.5))  # the third token's ratio e^-1 < 0.5 is masked
    assert sums == pytest.approx(
        {
            "entropy": 3.0,
            "ratio_mean": math.exp(0.5) + math.exp(-1),
            "icepop_masked": 1.0,
            "clipped": 0.0,
            "logprob_diff": 1.5,
            "ratio_outside_10": 2.0,
            "ratio_outside_half": 1.0,
            "tokens": 2.0,
            "weight": 1.0,
        }
    )
    assert float(statistics.maxima["logprob_diff_max"]) == pytest.approx(1.0)


def test_bands_of_the_ratio():
    ratios = np.array([1.0, 0.901, 0.899, 1.099, 1.101, 0.501, 0.499, 1.99, 2.01, np.exp(-50), np.exp(50)])
    weights = np.full(12, 1 / 11)
    weights[11] = 0  # a tool wrote this one
    _, statistics, _ = run(np.append(np.log(ratios) - 60, 3), np.full(12, -60.0), [1] * 12, weights, "none")
    outside = ((ratios < 0.9) | (ratios > 1.1)).sum(), ((ratios < 0.5) | (ratios > 2)).sum()
    assert [float(statistics.sums[f"ratio_outside_{k}"]) for k in ("10", "half")] == list(outside) == [8, 4]


def test_a_ratio_that_is_no_number_is_outside():
    assert losses.is_outside(jnp.array([np.nan, np.inf, 0.0]), 0.9, 1.1).tolist() == [1.0, 1.0, 0.0]


def test_sequence_outliers_against_loops():
    """Random rows of packed sequences; what is masked, padded or of a neighbour moves nothing."""
    rng = np.random.default_rng(4)
    segments = np.sort(rng.integers(0, 6, (5, 40)), axis=1)[:, ::-1].copy()
    segments = np.where(segments, segments.max(1, keepdims=True) + 1 - segments, 0)  # 1, 2, ... then padding
    engine = rng.normal(-2, 1, segments.shape).astype(np.float32)
    shift = rng.choice([0, 0.08, 0.12, -0.12], (5, 8))[np.arange(5)[:, None], segments]
    trainer = (engine + shift + rng.normal(0, 0.02, segments.shape)).astype(np.float32)
    weights = np.where((segments > 0) & (rng.random(segments.shape) < 0.6), rng.random(segments.shape), 0)
    weights[0, segments[0] == 1] = 0  # not trained at all
    trainer = np.where(weights > 0, trainer, rng.choice([0, -1e4, np.nan], segments.shape))

    means = []
    for row in range(5):
        for s in range(1, segments[row].max() + 1):
            at = (segments[row] == s) & (weights[row] > 0)
            if at.any():
                means.append(np.exp((trainer - engine)[row][at].mean()))
    got = losses.sequence_outliers(*map(jnp.float32, (trainer, engine, weights)), jnp.int32(segments))
    outside = sum(not 0.9 <= m <= 1.1 for m in means)
    assert 0 < outside < len(means)
    assert {k: float(v) for k, v in got.items()} == {"sequences": len(means), "sequence_outliers": outside}


def test_opposite_errors_of_tokens_are_no_outlier():
    """Single tokens far off both ways: a matter of `ratio_outside_half`, not of the sequence."""
    off = np.log(3) * np.array([[1, -1, 1, -1]])
    args = (jnp.float32(off), jnp.zeros((1, 4)), jnp.ones((1, 4)), jnp.ones((1, 4), jnp.int32))
    assert float(losses.sequence_outliers(*args)["sequence_outliers"]) == 0


def test_all_masked_is_finite_zero():  # P23
    loss, statistics, gradient = run([-1.0, np.nan], [0, 0], [1, 1], [0, 0])
    assert loss == 0 and not gradient.any()
    assert all(float(v) == 0 for v in jax.tree.leaves(statistics))


def test_sft_loss_is_the_weighted_nll():
    weights = jnp.array([0.25, 0, 0.75])

    def f(logp):
        return losses.sft_loss(logp, jnp.ones(3), weights)

    (loss, statistics), gradient = jax.value_and_grad(f, has_aux=True)(jnp.array([-1.0, -jnp.inf, -3.0]))
    assert float(loss) == pytest.approx(2.5)
    assert gradient.tolist() == [-0.25, 0.0, -0.75]
    assert float(statistics.sums["tokens"]) == 2 and float(statistics.sums["entropy"]) == 2
