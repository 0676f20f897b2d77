"""Attention over packed rows (every kernel by the same test) and over a cache, against plain loops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carr_jax.models import splash
from carr_jax.models.attention import Past, cached_attention, context_order, self_attention
from carr_jax.models.blockwise import Place, blockwise_attention, visible_blocks
from carr_jax.models.compute import Compute
from carr_jax.sharding import make_mesh


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


# ------------------------------------------------------------------------------------------- packed rows


def packed_row(lengths, length):
    """segments [1, length] and positions: the given segments one after the other, then padding."""
    segments, positions = np.zeros((1, length), np.int32), np.zeros((1, length), np.int32)
    start = 0
    for i, n in enumerate(lengths, start=1):
        segments[0, start : start + n], positions[0, start : start + n] = i, np.arange(n)
        start += n
    return segments, positions


def mesh_of(**sizes):
    return make_mesh(dict.fromkeys(("data", "fsdp", "expert", "context", "tensor"), 1) | sizes)


def dense(q, k, v, segments):
    """All pairs at once, in jax so that it has gradients."""
    groups = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, groups, axis=2), jnp.repeat(v, groups, axis=2)
    scores = jnp.einsum("bshd,bthd->bhst", q, k, precision="highest") / np.sqrt(q.shape[-1])
    index = np.arange(q.shape[1])
    seen = (index[:, None] >= index) & (segments[:, :, None] == segments[:, None, :])
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e30), axis=-1)
    return jnp.einsum("bhst,bthd->bshd", weights, v, precision="highest")


# One row each: lengths of its segments and of the row.
ROWS = {
    "one segment": ([256], 256),
    "packed": ([100, 3, 120], 256),
    "mostly padding": ([17], 256),
    "long": ([700, 300, 1], 1024),
}
KERNELS = {
    "blockwise": dict(compute=Compute(), sizes={}),
    "blockwise, 4 contexts": dict(compute=Compute(), sizes=dict(context=4)),
    "blockwise, context and heads": dict(compute=Compute(), sizes=dict(context=2, tensor=2)),
    "splash": dict(compute=Compute(attention="splash", interpret=True), sizes={}),
    "splash, head by head": dict(compute=Compute(attention="splash", interpret=True), sizes={}),
    "splash, two by two": dict(compute=Compute(attention="splash", interpret=True), sizes={}),
    "splash, 2 contexts": dict(compute=Compute(attention="splash", interpret=True), sizes=dict(context=2)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("row", ROWS)
def test_every_kernel_equals_dense_attention(kernel, row, monkeypatch):
    """Values and gradients, with packing, padding, grouped heads and rows of many blocks."""
    if kernel == "splash, head by head":
        monkeypatch.setattr(splash, "_PARTIAL_BYTES", 1)
    if kernel == "splash, two by two":
        monkeypatch.setattr(splash, "_PARTIAL_BYTES", 2 * 256 * 128 * 2)
    compute, sizes = KERNELS[kernel]["compute"], KERNELS[kernel]["sizes"]
    interpreted = compute.attention == "splash"
    if interpreted and row != "packed":
        pytest.skip("the interpreter of the TPU kernel is slow: one row is enough")
    lengths, length = ROWS[row]
    head_dim = 128 if interpreted else 8
    segments, _ = packed_row(lengths, length)
    q, k, v = draw(0, 1, length, 4, head_dim), draw(1, 1, length, 2, head_dim), draw(2, 1, length, 2, head_dim)
    weight = draw(3, *q.shape) * (segments != 0)[..., None, None]
    mesh = mesh_of(**sizes)
    order = context_order(length, mesh.shape["context"])
    compute = Compute(attention=compute.attention, interpret=compute.interpret, mesh=mesh)

    def loss(attend, q, k, v):
        out = attend(q, k, v)
        return jnp.sum(weight * out), out

    def cut(q, k, v):
        out = self_attention(q[:, order], k[:, order], v[:, order], segments[:, order], compute)
        return jnp.zeros_like(out).at[:, order].set(out)

    def both(attend):
        step = jax.jit(jax.value_and_grad(functools.partial(loss, attend), (0, 1, 2), has_aux=True))
        return jax.block_until_ready(step(q, k, v))

    (_, got), got_grads = both(cut)
    (_, want), want_grads = both(lambda q, k, v: dense(q, k, v, segments))
    real = segments[0] != 0
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[:, real], want[:, real], atol=2e-5)
    for a, b in zip(got_grads, want_grads, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_dense_oracle_matches_loops():
    segments, positions = packed_row([3, 2], 7)
    q, k, v = draw(0, 1, 7, 4, 8), draw(1, 1, 7, 2, 8), draw(2, 1, 7, 2, 8)
    want = reference(q, k, v, positions, segments)
    np.testing.assert_allclose(dense(q, k, v, segments)[:, :5], want[:, :5], atol=2e-6)


@pytest.mark.parametrize("length", [1, 7, 130, 300])
def test_rows_that_are_no_multiple_of_a_block(length):
    segments, positions = packed_row([length], length)
    q, k, v = draw(10, 1, length, 2, 4), draw(11, 1, length, 1, 4), draw(12, 1, length, 1, 4)
    out = self_attention(q, k, v, segments, Compute())
    np.testing.assert_allclose(out, reference(q, k, v, positions, segments), atol=2e-6)


def test_padding_gets_zeros_and_no_gradient():
    segments, _ = packed_row([2], 4)
    q, k, v = draw(7, 1, 4, 2, 4), draw(8, 1, 4, 1, 4), draw(9, 1, 4, 1, 4)

    def loss(k):
        return jnp.sum(self_attention(q, k, v, segments, Compute()) ** 2)

    grad = np.asarray(jax.grad(loss)(jnp.asarray(k)))
    assert np.isfinite(grad).all() and np.abs(grad[:, :2]).max() > 0
    assert (grad[:, 2:] == 0).all()
    assert (np.asarray(self_attention(q, k, v, segments, Compute()))[:, 2:] == 0).all()


def test_hidden_blocks_are_never_touched():
    """Keys of blocks that no query of the other blocks may see are NaN: one touch would show."""
    segments, _ = packed_row([64, 64, 64], 256)
    row = Place(jnp.arange(256), jnp.asarray(segments))
    q, k, v = draw(0, 1, 256, 2, 4), draw(1, 1, 256, 1, 4), draw(2, 1, 256, 1, 4)
    k[:, 64:128] = np.nan
    out = np.asarray(blockwise_attention(q, k, v, row, row, block=64))
    assert np.isfinite(out[:, :64]).all() and np.isfinite(out[:, 128:]).all()
    assert np.isnan(out[:, 64:128]).all()


def test_work_is_that_of_the_visible_blocks():
    """One segment: the lower triangle.  Four packed ones: four small triangles, not one large."""

    def count(lengths):
        segments, _ = packed_row(lengths, 512)
        cut = Place(jnp.arange(512).reshape(8, 64), jnp.asarray(segments).reshape(8, 1, 64))
        return int(visible_blocks(cut, cut).sum())

    assert count([512]) == 8 * 9 // 2
    assert count([128] * 4) == 4 * 3
    assert count([100]) == 3


def test_context_shards_do_equal_work():
    for shards in (2, 4):
        order = context_order(1024, shards).reshape(shards, -1)
        segments = jnp.ones((1, 1024), jnp.int32)
        keys = Place(jnp.arange(1024).reshape(16, 64), segments.reshape(16, 1, 64))
        work = [
            int(
                visible_blocks(
                    Place(jnp.asarray(part.reshape(-1, 64)), jnp.ones((part.size // 64, 1, 64))), keys
                ).sum()
            )
            for part in order
        ]
        assert len(set(work)) == 1


def test_context_shards_see_equally_many_keys():
    """Token t of a whole-row segment sees t + 1 keys, however short the chunks."""
    for length, shards in ((8, 4), (12, 2), (96, 8), (30, 1), (30, 3)):
        keys = (context_order(length, shards) + 1).reshape(shards, -1).sum(1)
        assert set(keys) == {length * (length + 1) // 2 // shards}


def test_context_order_is_a_permutation_and_refuses_odd_rows():
    assert context_order(8, 1).tolist() == list(range(8))
    assert context_order(8, 2).tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert sorted(context_order(48, 4)) == list(range(48))
    with pytest.raises(ValueError, match="rows of 12 tokens"):
        context_order(12, 4)


def test_cudnn_refuses_what_it_cannot_do():
    q = jnp.zeros((1, 8, 2, 64), jnp.bfloat16)
    with pytest.raises(ValueError, match="context axis"):
        self_attention(q, q, q, jnp.ones((1, 8), int), Compute(attention="cudnn", mesh=mesh_of(context=2)))
    with pytest.raises(Exception, match="cuDNN"):  # there is none on a CPU
        jax.jit(lambda q: self_attention(q, q, q, jnp.ones((1, 8), int), Compute(attention="cudnn")))(q)


def test_softmax_is_float32_for_bfloat16_inputs():
    # 300 equal keys: the weights 1/300 sum to 1 only when the normaliser is not kept in bfloat16.
    q, k = jnp.zeros((1, 300, 1, 4), jnp.bfloat16), jnp.zeros((1, 300, 1, 4), jnp.bfloat16)
    out = self_attention(q, k, jnp.ones_like(k), jnp.ones((1, 300), int), Compute())
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), 1.0, atol=4e-3)


# ------------------------------------------------------------------------------------- a cache and a chunk


@jax.jit
def run(q, k, v, positions, segments, past=()):
    return cached_attention(q, k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3), positions, segments, past)


def test_grouped_heads_packed_segments_and_padding_match_loops():
    q, k, v = draw(0, 2, 7, 4, 8), draw(1, 2, 7, 2, 8), draw(2, 2, 7, 2, 8)
    segments = np.array([[1, 1, 1, 2, 2, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
    positions = np.array([[0, 1, 2, 0, 1, 0, 0], [0, 0, 0, 1, 2, 3, 4]])
    real, want = segments != 0, reference(q, k, v, positions, segments)
    for out in (run(q, k, v, positions, segments), self_attention(q, k, v, segments, Compute())):
        np.testing.assert_allclose(np.asarray(out)[real], want[real], atol=2e-6)
        assert np.isfinite(out).all()


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


@pytest.mark.parametrize("length", [65_536, 131_072, 40_960, 256])
def test_backward_blocks_divide_the_row(length):
    assert length % splash.backward_keys(length) == 0


def test_rows_that_splash_cannot_cut_are_one_clear_line():
    order = context_order(64_000, 8)
    with pytest.raises(ValueError, match="multiple of 8 .*row_length is 64000; 65,536 is one"):
        splash.splash_kernel(order.tobytes(), heads=4, shards=8, keep=True, interpret=True)
