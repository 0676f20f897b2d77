import jax
import jax.numpy as jnp
import numpy as np

from carr_jax.models.attention import Past, attention


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def reference(q, k, v, positions, segments):
    """Loops over everything: q [B, S, H, D], k and v [B, S, K, D]; padding queries are left at zero."""
    out = np.zeros_like(q)
    share = q.shape[2] // k.shape[2]
    for b, s, h in np.ndindex(q.shape[:3]):
        seen = [
            t
            for t in range(k.shape[1])
            if segments[b, t] == segments[b, s] != 0 and positions[b, t] <= positions[b, s]
        ]
        if seen:
            scores = np.array([q[b, s, h] @ k[b, t, h // share] for t in seen]) / np.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            out[b, s, h] = weights @ v[b, seen, h // share] / weights.sum()
    return out


@jax.jit
def run(q, k, v, positions, segments, past=()):
    return attention(q, k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3), positions, segments, past)


def test_grouped_heads_packed_segments_and_padding_match_loops():
    q, k, v = draw(0, 2, 7, 4, 8), draw(1, 2, 7, 2, 8), draw(2, 2, 7, 2, 8)
    segments = np.array([[1, 1, 1, 2, 2, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
    positions = np.array([[0, 1, 2, 0, 1, 0, 0], [0, 0, 0, 1, 2, 3, 4]])
    out = np.asarray(run(q, k, v, positions, segments))
    real = segments != 0
    np.testing.assert_allclose(out[real], reference(q, k, v, positions, segments)[real], atol=2e-6)
    assert np.isfinite(out).all()


def test_long_rows_go_by_blocks_of_queries_with_the_same_result():
    length = 300  # more than two blocks, the last one short
    q, k, v = draw(10, 1, length, 2, 4), draw(11, 1, length, 1, 4), draw(12, 1, length, 1, 4)
    segments = np.repeat([1, 2, 0], [170, 100, 30])[None]
    positions = np.concatenate([np.arange(170), np.arange(100), np.zeros(30, int)])[None]
    out = np.asarray(run(q, k, v, positions, segments))
    np.testing.assert_allclose(out[:, :270], reference(q, k, v, positions, segments)[:, :270], atol=2e-6)


def test_a_cached_prefix_gives_what_the_whole_row_gives():
    q, k, v = draw(3, 1, 9, 4, 8), draw(4, 1, 9, 2, 8), draw(5, 1, 9, 2, 8)
    positions, segments = np.arange(9)[None], np.ones((1, 9), int)
    whole = run(q, k, v, positions, segments)
    garbage = 50 * draw(6, 1, 3, 2, 8)  # cached beyond the length: must be invisible
    cached = [np.concatenate([x[:, :5], garbage], axis=1) for x in (k, v)]
    past = Past(cached[0].transpose(0, 2, 3, 1), cached[1].transpose(0, 2, 1, 3), jnp.array([5]))
    rest = run(q[:, 5:], k[:, 5:], v[:, 5:], positions[:, 5:], segments[:, 5:], (past,))
    np.testing.assert_allclose(rest, whole[:, 5:], atol=1e-6)
    parts = [
        Past(past.k_BxKxDxT[..., i:j], past.v_BxKxTxD[:, :, i:j], jnp.array([j - i]))
        for i, j in ((0, 2), (2, 5))
    ]
    split = run(q[:, 5:], k[:, 5:], v[:, 5:], positions[:, 5:], segments[:, 5:], tuple(parts))
    np.testing.assert_allclose(split, whole[:, 5:], atol=1e-6)


def test_gradients_are_finite_with_padding_and_do_not_reach_it():
    q, k, v = draw(7, 1, 4, 2, 4), draw(8, 1, 4, 1, 4), draw(9, 1, 4, 1, 4)
    positions, segments = np.array([[0, 1, 0, 0]]), np.array([[1, 1, 0, 0]])

    def loss(k):
        return jnp.sum(run(q, k, v, positions, segments)[:, :2] ** 2)

    grad = np.asarray(jax.grad(loss)(jnp.asarray(k)))
    assert np.isfinite(grad).all() and np.abs(grad[:, :2]).max() > 0
    assert (grad[:, 2:] == 0).all()


def test_softmax_is_float32_for_bfloat16_inputs():
    # 300 equal keys: the weights 1/300 sum to 1 only when the normaliser is not kept in bfloat16.
    q, k = jnp.zeros((1, 300, 1, 4), jnp.bfloat16), jnp.zeros((1, 1, 4, 300), jnp.bfloat16)
    v = jnp.ones((1, 1, 300, 4), jnp.bfloat16)
    out = attention(q, k, v, jnp.arange(300)[None], jnp.ones((1, 300), int))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), 1.0, atol=4e-3)
