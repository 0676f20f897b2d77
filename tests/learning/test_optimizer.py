"""AdamW against its formula in NumPy, the clip, the decay mask and the schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from carr_jax.learning import optimizer

PLAIN = {
    "lr": 0.1,
    "schedule": "constant",
    "warmup_steps": 0,
    "total_steps": 0,
    "b1": 0.9,
    "b2": 0.98,
    "weight_decay": 0.1,
    "clip_norm": 1e9,
}


def run(params, gradients, **changes):
    tx = optimizer.adamw(**(PLAIN | changes))
    state = tx.init(params)
    for g in gradients:
        updates, state = tx.update(g, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def test_two_steps_by_the_formula():
    w, gradients = np.array([[1.0, -2.0]]), [np.array([[0.5, 1.0]]), np.array([[-1.0, 0.25]])]
    got, _ = run({"w": jnp.float32(w)}, [{"w": jnp.float32(g)} for g in gradients])
    m = v = np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        w = w - 0.1 * ((m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-8) + 0.1 * w)
    np.testing.assert_allclose(got["w"], w, rtol=1e-5)


def test_decay_spares_norms_and_vectors():
    layers = {"mlp": {"up": jnp.ones((2, 3, 4))}, "mlp_norm": {"scale": jnp.ones((2, 3))}}
    params = {"layers": layers, "bias": jnp.ones(3)}
    got, _ = run(params, [jax.tree.map(jnp.zeros_like, params)])
    np.testing.assert_allclose(got["layers"]["mlp"]["up"], 0.99, rtol=1e-6)
    assert (got["layers"]["mlp_norm"]["scale"] == 1).all() and (got["bias"] == 1).all()


def test_clip_acts_before_the_moments():
    gradient = {"w": jnp.array([[3.0, 4.0]])}
    _, state = run({"w": jnp.zeros((1, 2))}, [gradient], clip_norm=1.0)
    mu = optax.tree.get(state, "mu")["w"]
    np.testing.assert_allclose(mu, 0.1 * np.array([[0.6, 0.8]]), rtol=1e-5)
    assert mu.dtype == optax.tree.get(state, "nu")["w"].dtype == jnp.float32


def lr(step, **changes):
    options = {"peak": 1.0, "schedule": "cosine", "warmup_steps": 4, "total_steps": 14} | changes
    return float(optimizer.learning_rate(step, **options))


def test_cosine_with_warm_up():
    assert [lr(s) for s in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert [lr(4), lr(9), lr(14), lr(99)] == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_constant():
    assert [lr(s, schedule="constant", warmup_steps=2) for s in (0, 1, 50)] == pytest.approx([0.5, 1.0, 1.0])
    assert lr(0, schedule="constant", warmup_steps=0) == 1.0


def test_unknown_schedule():
    with pytest.raises(ValueError, match="constant, cosine"):
        lr(0, schedule="linear")
