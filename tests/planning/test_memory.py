"""Memory by parts, and what a compiler says when it is not enough."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from carr_jax.models.config import PRESETS
from carr_jax.planning.memory import Memory, bytes_per_chip, compiled_peak, estimated_temporaries, out_of_memory

MEMORY = Memory(
    weights=2, optimizer=4, batch=1, gradients=2, activations=5, temporaries=0, host=3, limit=16
)  # fmt: skip


def test_parts_add_up_to_the_peak():
    memory = MEMORY.with_peak(15.5)
    assert (memory.arguments, memory.temporaries, memory.peak, memory.fits) == (7, 1.5, 15.5, True)
    assert not MEMORY.with_peak(16.5).fits


def test_parts_that_do_not_live_together():
    memory = MEMORY.with_peak(12)
    assert (memory.activations, memory.temporaries, memory.peak) == (3, 0, 12)


def test_bytes_of_one_device():
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def array(shape, dtype, *spec, kind=None):
        sharding = NamedSharding(mesh, PartitionSpec(*spec), memory_kind=kind)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    tree = [
        array((8, 6), jnp.float32, "a", "b"),  # 4 x 3
        array((8, 6), jnp.bfloat16, ("a", "b")),  # 2 x 6
        array((), jnp.int32),
        array((8,), jnp.float32, "a", kind="pinned_host"),  # 4
    ]
    assert bytes_per_chip(tree) == (4 * 3 * 4 + 2 * 6 * 2 + 4, 4 * 4)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
            "(75.57G) exceeds available HBM (31.25G).",
            (75.57, 31.25),
        ),
        ("RESOURCE_EXHAUSTED: ... HLO temporaries (512.00M) exceeds available HBM (0.25G)", (0.5, 0.25)),
        (
            "Ran out of memory in memory space hbm. Used 16.42G of 15.75G hbm. Exceeded by 686.31M.",
            (16.42, 15.75),
        ),
        ("INTERNAL: RET_CHECK failure", None),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.", None),
    ],
)
def test_the_compilers_words(text, found):
    assert out_of_memory(text) == (None if found is None else pytest.approx(found))


def test_the_peak_on_a_cpu_is_at_least_what_must_live_at_once():
    """x, its square and the result."""
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    compiled = jax.jit(lambda x: (x @ x) @ x).lower(x).compile()
    assert 3 * 2**18 <= compiled_peak(compiled, "cpu") * 2**30 < 4 * 2**18


def test_the_estimate_grows_with_its_causes():
    dense = dataclasses.replace(PRESETS["tiny"], vocab_size=1000)
    usual = dict(tokens=4096, row_tokens=8192, chunk=64, item=2, tensor=1)
    base = estimated_temporaries(dense, **usual)
    for larger in (dict(tokens=8192), dict(row_tokens=16384), dict(chunk=4096), dict(item=4)):
        assert estimated_temporaries(dense, **usual | larger) > base
    assert estimated_temporaries(dense, **usual | dict(tensor=2)) < base
