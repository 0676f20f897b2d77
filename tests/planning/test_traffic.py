"""Collectives read from compiled programs against hand values, on four devices of the CPU."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from carr_jax.planning.traffic import parse, traffic

ROWS, WIDTH = 64, 16
WHOLE = ROWS * WIDTH * 4  # bytes of a float32 array
OUT = PartitionSpec("x", None)


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:4]), ("x",), axis_types=(AxisType.Auto,))


def compiled_text(mesh, function, *more, out=OUT):
    """HLO of `function`, each device having a quarter of the rows."""
    specs = (OUT, *(PartitionSpec() for _ in more))
    call = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, OUT))
    return call.lower(x, *more).compile().as_text()


CASES = {
    "all-gather": (lambda x: lax.all_gather(x, "x", tiled=True)[:16], WHOLE),
    "reduce-scatter": (lambda x: lax.psum_scatter(x, "x", tiled=True), WHOLE / 4),  # of a quarter of the array
    "all-reduce": (lambda x: lax.psum(x, "x"), 2 * WHOLE / 4),
    "all-to-all": (lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True), WHOLE / 4),
    "collective-permute": (lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)]), WHOLE / 4),
}


@pytest.mark.parametrize("kind", CASES)
def test_bytes_of_each_kind(mesh, kind):
    function, expected = CASES[kind]
    assert traffic(compiled_text(mesh, function)) == {kind: expected}


def test_loops_are_multiplied_out(mesh):
    def gathered(x, _):
        return jnp.sin(lax.all_gather(x, "x", tiled=True)[:16]), None

    text = compiled_text(mesh, lambda x: lax.scan(lambda c, _: lax.scan(gathered, c, length=3), x, length=5)[0])
    assert traffic(text) == {"all-gather": 15 * WHOLE}


def test_what_happens_inside_a_loop_without_a_known_bound(mesh):
    def step(x, n):
        x = lax.fori_loop(0, n, lambda _, y: jnp.sin(lax.all_gather(y, "x", tiled=True)[:16]), x)
        return lax.psum_scatter(x, "x", tiled=True)

    text = compiled_text(mesh, step, jax.ShapeDtypeStruct((), jnp.int32))
    outside = {"reduce-scatter": WHOLE / 4}
    assert traffic(text, 0) == outside
    assert traffic(text) == {"all-gather": WHOLE, **outside}
    assert traffic(text, 7) == {"all-gather": 7 * WHOLE, **outside}


def test_what_libtpu_prints_is_counted_once():
    """tpu_step.hlo: six times a reduce-scatter printed as all-reduce and slice, in one fusion and beside it, a
    gather printed as an all-reduce of the own part among zeros, and an asynchronous gather; then a pipelined
    loop that counts to eight by a step of two that lies in its state."""
    whole, part = 2048 * 128 * 2, 128 * 128 * 2
    expected = {
        "all-gather": 6 * 2 * whole,
        "reduce-scatter": 6 * 2 * whole,
        "collective-permute": 4 * part,
        "all-reduce": 8,
    }
    assert traffic((Path(__file__).parent / "tpu_step.hlo").read_text()) == expected


def test_other_texts_are_refused():
    with pytest.raises(ValueError, match="not an HLO module"):
        parse("no program")
