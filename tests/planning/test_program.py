"""FLOPs of traced programs against hand values."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType, PartitionSpec

from carr_jax.planning.program import Unseen, program_flops, saved_bytes, static_trips

M, K, N = 3, 5, 7
A, B = jnp.ones((M, K)), jnp.ones((K, N))
SQUARE = jnp.ones((K, K))
ONE = 2 * K * K * K  # of SQUARE @ SQUARE


def count(function, *args, **unseen):
    return program_flops(jax.make_jaxpr(function)(*args), Unseen(**unseen))


def test_matrix_products():
    assert count(jnp.matmul, A, B).by_kind == {"dot_general": 2 * M * K * N}
    batched = count(lambda a, b: jnp.einsum("xmk,xkn->xmn", a, b), jnp.ones((4, M, K)), jnp.ones((4, K, N)))
    assert batched.total == 4 * 2 * M * K * N


def test_convolution():
    """Each of 2 x 6 x 4 outputs is a sum over 3 taps and 5 inputs."""
    x, kernel = jnp.ones((2, 8, 5)), jnp.ones((3, 5, 4))
    layout = ("NWC", "WIO", "NWC")
    counted = count(
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=layout), x, kernel
    )
    assert counted.total == 2 * (2 * 6 * 4) * 3 * 5


def test_grouped_products_cost_their_rows_once():
    """Forward, gradient of the rows, gradient of the groups' matrices: the same work three times."""
    x, w, sizes = jnp.ones((8, 4)), jnp.ones((3, 4, 5)), jnp.array([2, 3, 3])
    step = jax.grad(lambda x, w: lax.ragged_dot(x, w, sizes).sum() ** 2, (0, 1))
    assert count(step, x, w).by_kind == {"ragged_dot_general": 3 * 2 * 8 * 4 * 5}


def test_loops_count_their_iterations():
    assert count(lambda x: lax.scan(lambda c, _: (c @ SQUARE, None), x, length=6), SQUARE).total == 6 * ONE

    def by_two(x):
        return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 2, c[1] @ SQUARE), (0, x))

    assert count(by_two, SQUARE).total == 3 * ONE


def test_a_bound_that_is_carried_must_stay_the_same():
    def shrinking(x):
        return lax.while_loop(lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1] - 1, c[2] @ SQUARE), (0, 4, x))

    (eqn,) = [e for e in jax.make_jaxpr(shrinking)(SQUARE).eqns if e.primitive.name == "while"]
    assert static_trips(eqn) is None


def test_bounds_of_run_time_are_the_callers():
    def nested(x, n):
        with jax.named_scope("outer"):
            return lax.fori_loop(0, n, lambda _, y: inner(y, n), x)

    @jax.jit
    def inner(y, n):
        return lax.fori_loop(0, n, lambda _, z: z @ SQUARE, y)

    assert count(nested, SQUARE, 3).total == ONE
    assert count(nested, SQUARE, 3, trips={"inner": 5, "outer": 2}).total == 10 * ONE


def test_the_dearest_branch_counts():
    def either(p, x):
        return lax.cond(p, lambda x: x @ SQUARE @ SQUARE, lambda x: x @ SQUARE, x)

    assert count(either, True, SQUARE).total == 2 * ONE


@pytest.mark.parametrize(("wrap", "products"), [(lambda f: f, 2 + 4), (jax.checkpoint, 2 + 1 + 4)])
def test_recomputation_counts_and_dead_code_does_not(wrap, products):
    """sin(x W) W: the backward pass needs the first product again, and nobody needs the second."""

    @wrap
    def layer(x, w):
        return jnp.sin(x @ w) @ w

    step = jax.value_and_grad(lambda x, w: layer(x, w).sum(), (0, 1))
    assert count(step, SQUARE, SQUARE).total == products * ONE


def test_a_shard_map_counts_on_each_device():
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    spec = PartitionSpec("a", None)
    each = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
    assert count(each, jnp.ones((8, K)), SQUARE).total == 4 * (2 * 4 * K * K)  # both b devices do the same


def test_what_a_loop_does_in_vain_is_not_counted():
    def step(x, n):
        return lax.fori_loop(0, n, lambda _, y: (y @ SQUARE @ SQUARE, jnp.sin(y) @ SQUARE)[1], x)

    assert count(step, SQUARE, 3).total == ONE


def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


@pytest.mark.parametrize(
    ("estimate", "kernels", "flops"), [(None, {"doub": 11}, 11), (9, {}, 9), (None, {}, 0)]
)
def test_kernels(estimate, kernels, flops):
    cost = estimate and pl.CostEstimate(flops=estimate, transcendentals=0, bytes_accessed=0)
    call = pl.pallas_call(double, out_shape=A, name="double", cost_estimate=cost, interpret=True)
    counted = count(call, A, kernels=kernels)
    assert counted.total == flops
    assert counted.unknown_kernels == (() if flops else ("double",))


@pytest.mark.parametrize(("checkpoint", "arrays"), [(False, 2), (True, 1)])
def test_saved_bytes(checkpoint, arrays):
    """Without recomputation a layer keeps its input and the derivative of sin, with it only its input."""

    def layer(x, w):
        return jnp.sin(x @ w), None

    def loss(ws, x):
        return lax.scan(jax.checkpoint(layer) if checkpoint else layer, x, ws)[0].sum()

    program = jax.make_jaxpr(jax.grad(loss))(jnp.ones((6, K, K)), A)
    assert saved_bytes(program, 6) == arrays * 6 * M * K * 4
    assert saved_bytes(program, 5) == 0
