import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carr_jax.models.moe import expert_load, expert_mlp, route


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dense_reference(x, router, gate, up, down, k, renormalise):
    """Every expert for every token in float64, then a weighted sum over the chosen ones."""
    x, router, gate, up, down = (a.astype(np.float64) for a in (x, router, gate, up, down))
    out = np.zeros_like(x)
    for n, token in enumerate(x):
        logits = token @ router
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        best = np.argsort(-p)[:k]
        scale = p[best].sum() if renormalise else 1.0
        for e in best:
            a = token @ gate[e]
            out[n] += p[e] / scale * ((a / (1 + np.exp(-a)) * (token @ up[e])) @ down[e])
    return out


@pytest.mark.parametrize(("renormalise", "expected"), [(True, [4 / 7, 3 / 7]), (False, [0.4, 0.3])])
def test_top_k_weights_of_p29(renormalise, expected):
    router = np.log(np.array([[0.2, 0.4, 0.1, 0.3]], np.float32))
    experts, weights = route(jnp.ones((1, 1)), router, 2, renormalise)
    assert experts.tolist() == [[1, 3]]
    np.testing.assert_allclose(weights[0], expected, rtol=1e-6)


@pytest.mark.parametrize("renormalise", [True, False])
def test_sorted_experts_match_the_dense_oracle(renormalise):
    x, router = draw(0, 23, 8), draw(1, 8, 6)
    router[:, 5] -= 20 * np.sign(x.sum(0))  # one expert stays nearly empty: groups of size 0 must work
    gate, up, down = draw(2, 6, 8, 5), draw(3, 6, 8, 5), draw(4, 6, 5, 8)
    out = expert_mlp(x, *route(x, router, 3, renormalise), gate, up, down)
    np.testing.assert_allclose(out, dense_reference(x, router, gate, up, down, 3, renormalise), atol=2e-4)


def test_no_token_is_dropped_when_all_choose_one_expert():
    x, router = np.ones((16, 4), np.float32), np.zeros((4, 8), np.float32)
    router[:, 2] = 5.0
    gate, up, down = draw(0, 8, 4, 3), draw(1, 8, 4, 3), draw(2, 8, 3, 4)
    out = np.asarray(expert_mlp(x, *route(x, router, 1, True), gate, up, down))
    np.testing.assert_allclose(out, dense_reference(x, router, gate, up, down, 1, True), atol=1e-5)
    assert np.abs(out).min(axis=1).max() > 0


def test_router_gets_a_gradient_through_the_weights():
    x, router = draw(0, 5, 4), draw(1, 4, 3)
    experts = (draw(2, 3, 4, 2), draw(3, 3, 4, 2), draw(4, 3, 2, 4))
    grad = jax.grad(lambda r: jnp.sum(expert_mlp(x, *route(x, r, 2, True), *experts) ** 2))(jnp.asarray(router))
    assert np.abs(grad).max() > 1e-3


def test_load_counts_real_tokens_only():
    experts, valid = np.array([[0, 1], [0, 2], [3, 3]]), np.array([True, True, False])
    np.testing.assert_allclose(expert_load(experts, valid, 4), [0.5, 0.25, 0.25, 0.0])
    np.testing.assert_allclose(expert_load(experts, np.zeros(3, bool), 4), 0.0)
