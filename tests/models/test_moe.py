import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carr_jax.models import grouped
from carr_jax.models.compute import Compute, kernels_for
from carr_jax.models.grouped import grouped_matmul, tile_size, tiles_of
from carr_jax.models.moe import Experts, expert_load, expert_mlp, route
from carr_jax.sharding import make_mesh


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def mixture(x, router, gate, up, down, k, renormalise, compute=Compute(), replay=None):
    """Router and experts on tokens [N, M], as one row."""
    x = jnp.asarray(x)[None]
    experts, weights = route(x, router, k, renormalise, replay)
    return expert_mlp(x, experts, weights, Experts(gate, up, down), compute)[0]


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
    out = mixture(x, router, gate, up, down, 3, renormalise)
    np.testing.assert_allclose(out, dense_reference(x, router, gate, up, down, 3, renormalise), atol=2e-4)


def test_no_token_is_dropped_when_all_choose_one_expert():
    x, router = np.ones((16, 4), np.float32), np.zeros((4, 8), np.float32)
    router[:, 2] = 5.0
    gate, up, down = draw(0, 8, 4, 3), draw(1, 8, 4, 3), draw(2, 8, 3, 4)
    out = np.asarray(mixture(x, router, gate, up, down, 1, True))
    np.testing.assert_allclose(out, dense_reference(x, router, gate, up, down, 1, True), atol=1e-5)
    assert np.abs(out).min(axis=1).max() > 0


def test_router_gets_a_gradient_through_the_weights():
    x, router = draw(0, 5, 4), draw(1, 4, 3)
    experts = (draw(2, 3, 4, 2), draw(3, 3, 4, 2), draw(4, 3, 2, 4))
    grad = jax.grad(lambda r: jnp.sum(mixture(x, r, *experts, 2, True) ** 2))(jnp.asarray(router))
    assert np.abs(grad).max() > 1e-3


def test_load_counts_real_tokens_only():
    experts, valid = np.array([[0, 1], [0, 2], [3, 3]]), np.array([True, True, False])
    np.testing.assert_allclose(expert_load(experts, valid, 4), [0.5, 0.25, 0.25, 0.0])
    np.testing.assert_allclose(expert_load(experts, np.zeros(3, bool), 4), 0.0)


def test_replayed_routing_takes_the_engines_experts():
    """The experts of the engine with the trainer's weights; a token with -1 chooses for itself."""
    x, router = draw(0, 3, 4), draw(1, 4, 5)
    free, _ = route(x, router, 2, True)
    replay = np.array([[4, 0], [-1, -1], [2, 3]], np.int32)
    experts, weights = route(x, router, 2, True, replay)
    assert experts.tolist() == [[4, 0], free[1].tolist(), [2, 3]]
    p = np.asarray(jax.nn.softmax(x @ router))
    chosen = np.take_along_axis(p, np.asarray(experts), 1)
    np.testing.assert_allclose(weights, chosen / chosen.sum(1, keepdims=True), rtol=1e-5)


MESHES = [
    dict(fsdp=4),
    dict(context=2, fsdp=2),
    dict(expert=2, context=2),
    dict(expert=4),
    dict(expert=2, tensor=2),
]


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_experts_on_four_devices_equal_one(sizes):
    """Experts gathered or tokens exchanged: the same values and gradients as the dense oracle's."""
    mesh = make_mesh(dict.fromkeys(("data", "fsdp", "expert", "context", "tensor"), 1) | sizes)
    x, router = draw(0, 4, 6, 8), draw(1, 8, 8)
    matrices = Experts(draw(2, 8, 8, 6), draw(3, 8, 8, 6), draw(4, 8, 6, 8))

    def loss(matrices, x, router, compute):
        experts, weights = route(x, router, 3, True)
        y = expert_mlp(x, experts, weights, matrices, compute)
        return jnp.sum(jnp.sin(y)), y

    run = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True), static_argnums=3)
    (_, want), want_grads = run(matrices, x, router, Compute())
    (_, got), got_grads = jax.block_until_ready(run(matrices, x, router, Compute(mesh=mesh)))
    flat = dense_reference(x.reshape(-1, 8), router, *matrices, 3, True).reshape(x.shape)
    np.testing.assert_allclose(want, flat, atol=2e-4)
    np.testing.assert_allclose(got, want, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got_grads, want_grads)


# ------------------------------------------------------------------------------------------ grouped matmul


def by_hand(x, w, sizes):
    out, start = np.zeros((x.shape[0], w.shape[2])), 0
    for e, size in enumerate(sizes[: w.shape[0]]):
        out[start : start + size] = x[start : start + size].astype(np.float64) @ w[e]
        start += size
    return out


SIZES = {
    "even": [64, 64, 64, 64],
    "uneven": [200, 0, 55, 1],
    "one takes all": [0, 256, 0, 0],
    "rows of nobody": [30, 100, 7, 19, 100],
}


@pytest.mark.parametrize("kernel", ["tiled", "megablox"])
@pytest.mark.parametrize("sizes", SIZES)
def test_grouped_matmul_and_its_gradients_against_loops(kernel, sizes):
    sizes = SIZES[sizes]
    side = 128 if kernel == "megablox" else 10
    x, w, dy = draw(0, 256, side), draw(1, 4, side, side + 0), draw(2, 256, side)
    interpret = kernel == "megablox"

    def f(x, w):
        return grouped_matmul(x, w, jnp.array(sizes, jnp.int32), kernel, interpret)

    y, vjp = jax.vjp(f, jnp.asarray(x), jnp.asarray(w))
    dx, dw = vjp(jnp.asarray(dy))
    np.testing.assert_allclose(y, by_hand(x, w, sizes), atol=1e-4)
    np.testing.assert_allclose(dx, by_hand(dy, w.swapaxes(1, 2), sizes), atol=1e-4)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for e in range(4):
        rows = slice(starts[e], starts[e + 1])
        np.testing.assert_allclose(dw[e], x[rows].T @ dy[rows], atol=2e-4)


@pytest.mark.parametrize("sizes", ["uneven", "rows of nobody"])
def test_the_tokamax_seam_asks_for_the_right_products(sizes):
    """By tokamax's portable implementation: its kernels need an NVIDIA GPU, and refuse to run elsewhere."""
    pytest.importorskip("tokamax", reason="the extra `kernels` is not installed")
    x, w, dy, sizes = draw(0, 256, 10), draw(1, 4, 10, 6), draw(2, 256, 6), jnp.array(SIZES[sizes], jnp.int32)
    np.testing.assert_allclose(grouped.tokamax_product(x, w, sizes, "xla"), by_hand(x, w, sizes), atol=1e-4)
    want = grouped.tiled_outer(x, dy, sizes, 4)
    np.testing.assert_allclose(grouped.tokamax_outer(x, dy, sizes, 4, "xla"), want, atol=1e-4)
    with pytest.raises(Exception, match="implementations failed"):
        grouped.tokamax_product(x, w, sizes)


@pytest.mark.parametrize(
    ("platform", "chosen", "expected"),
    [
        ("tpu", ("auto", "auto"), ("splash", "megablox")),
        ("gpu", ("auto", "auto"), ("blockwise", "tiled")),
        ("cpu", ("auto", "auto"), ("blockwise", "tiled")),
        ("tpu", ("blockwise", "tiled"), ("blockwise", "tiled")),
    ],
)
def test_kernels_by_platform(platform, chosen, expected):
    assert kernels_for(platform, *chosen) == expected


@pytest.mark.parametrize(
    "chosen", [("splash", "auto"), ("cudnn", "auto"), ("auto", "megablox"), ("auto", "tokamax")]
)
def test_a_kernel_of_other_hardware_is_one_clear_line(chosen):
    with pytest.raises(ValueError, match="on cpu; give --config.model.(attention=blockwise|experts=tiled)"):
        kernels_for("cpu", *chosen)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=list(SIZES))
def test_tiles_cover_every_row_of_a_group_once(sizes):
    tiles = tiles_of(jnp.array(sizes), 4, 256, 16)
    seen = [
        (int(g), row)
        for g, start, rows in zip(*(np.asarray(x)[: int(tiles.count)] for x in tiles[:3]), strict=True)
        for row in range(int(start), int(start + rows))
    ]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    assert seen == [(e, row) for e in range(4) for row in range(starts[e], starts[e + 1])]


def test_expert_products_cost_what_they_must():
    """At most 5 % more rows than there are, for the 30B at 64k tokens with any split over the experts."""
    rows, matrices = 65_536 * 8, 128
    tile = tile_size(rows, matrices)
    rng = np.random.default_rng(0)
    for share in (np.ones(matrices), rng.dirichlet(np.ones(matrices)), rng.dirichlet(np.full(matrices, 0.1))):
        sizes = rng.multinomial(rows, share / share.sum())
        assert (-(-sizes // tile) * tile).sum() <= 1.05 * rows


def test_no_product_is_expanded_to_all_experts():
    """No value of the forward and backward program has a row for every pair of token and expert."""
    n, m, f, e, k = 96, 24, 20, 16, 2
    args = (draw(0, n, m), draw(1, m, e), draw(2, e, m, f), draw(3, e, m, f), draw(4, e, f, m))
    grad = jax.grad(lambda *a: jnp.sum(mixture(*a, k, True)), (0, 1, 2, 3, 4))
    text = str(jax.make_jaxpr(grad)(*args))
    largest = max(np.prod(list(map(int, dims.split(",")))) for dims in re.findall(r"f32\[([\d,]+)\]", text))
    assert "ragged_dot" not in text
    assert largest <= 2 * max(n * k * max(m, f), e * m * f) < n * e * min(m, f)
