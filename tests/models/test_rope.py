import jax.numpy as jnp
import numpy as np

from carr_jax.models.rope import rotary_phases, rotate


def reference(x, position, theta):
    """Rotate-half in float64, one vector."""
    d = len(x)
    angle = position * theta ** (-np.arange(0, d, 2) / d)
    a, b = x[: d // 2], x[d // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


def test_rotation_matches_float64_up_to_position_60_000():
    x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    for position, tolerance in ((0, 1e-7), (7, 1e-5), (1000, 1e-3), (4097, 4e-3), (60_000, 2e-2)):
        phases = rotary_phases(jnp.array([[position]]), 128, 5e6)
        out = rotate(x[None, None, None], phases)[0, 0, 0]
        np.testing.assert_allclose(out, reference(x.astype(np.float64), position, 5e6), atol=tolerance)


def test_bfloat16_input_does_not_lower_the_precision_of_the_phases():
    # 60_000 and 60_001 are the same number in bfloat16; the rotated vectors must differ by one radian (P30).
    x = jnp.array([1.0, 0.0], jnp.bfloat16).reshape(1, 1, 1, 2)
    one, two = (rotate(x, rotary_phases(jnp.array([[p]]), 2, 1e4))[0, 0, 0] for p in (60_000, 60_001))
    turn = np.arctan2(*np.asarray(two, np.float32)[::-1]) - np.arctan2(*np.asarray(one, np.float32)[::-1])
    assert abs((turn % (2 * np.pi)) - 1.0) < 0.02
    assert one.dtype == jnp.bfloat16


def test_scores_depend_on_the_distance_only():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 1, 16)).astype(np.float32)

    def score(i, j):
        at = [rotate(jnp.asarray(x), rotary_phases(jnp.array([[p]]), 16, 1e4)) for x, p in ((q, i), (k, j))]
        return float(jnp.sum(at[0] * at[1]))

    assert abs(score(5, 2) - score(105, 102)) < 1e-4
    assert abs(score(5, 2) - score(5, 3)) > 1e-3
