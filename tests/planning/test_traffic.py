"""Collectives read from compiled programs against hand values, on four devices of the CPU."""

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


# What libtpu prints: reduce-scatter as all-reduce and a slice in one fusion, or beside it; all-gather as an
# all-reduce of the own part among zeros; trip counts only as constants of the conditions.
TPU_TEXT = """
HloModule step, is_scheduled=true

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[]{:T(256)} parameter(0)
  %b = bf16[]{:T(256)} parameter(1)
  ROOT %sum = bf16[]{:T(256)} add(%a, %b)
}

%all-reduce-scatter.1 (input.1: bf16[2048,128]) -> bf16[512,128] {
  %input.1 = bf16[2048,128]{1,0:T(8,128)(2,1)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %all-reduce.1 = bf16[2048,128]{1,0:T(8,128)(2,1)} all-reduce(%input.1), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %slice.1 = bf16[512,128]{1,0:T(8,128)(2,1)S(1)} dynamic-slice(%all-reduce.1, %zero, %zero), dynamic_slice_sizes={512,128}
}

%take (p.0: f32[6,512,128], p.1: bf16[2048,128]) -> f32[6,512,128] {
  %p.0 = f32[6,512,128]{2,1,0:T(8,128)} parameter(0)
  %p.1 = bf16[2048,128]{1,0:T(8,128)(2,1)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  %own = bf16[512,128]{1,0:T(8,128)(2,1)} dynamic-slice(%p.1, %zero.1, %zero.1), dynamic_slice_sizes={512,128}
  %wide = f32[1,512,128]{2,1,0:T(8,128)} convert(%own)
  ROOT %into = f32[6,512,128]{2,1,0:T(8,128)} dynamic-update-slice(%p.0, %wide, %zero.1, %zero.1, %zero.1)
}

%place (p.2: bf16[512,128]) -> bf16[2048,128] {
  %p.2 = bf16[512,128]{1,0:T(8,128)(2,1)} parameter(0)
  %zeros = bf16[2048,128]{1,0:T(8,128)(2,1)} broadcast()
  %zero.2 = s32[]{:T(128)} constant(0)
  ROOT %placed = bf16[2048,128]{1,0:T(8,128)(2,1)} dynamic-update-slice(%zeros, %p.2, %zero.2, %zero.2)
}

%body (state: (s32[], bf16[512,128], /*index=2*/f32[6,512,128])) -> (s32[], bf16[512,128], f32[6,512,128]) {
  %state = (s32[]{:T(128)}, bf16[512,128]{1,0:T(8,128)(2,1)}, /*index=2*/f32[6,512,128]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  %w = bf16[512,128]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %grads = f32[6,512,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=2
  %mine = bf16[2048,128]{1,0:T(8,128)(2,1)} fusion(%w), kind=kLoop, calls=%place
  %gathered = bf16[2048,128]{1,0:T(8,128)(2,1)} all-reduce(%mine), replica_groups={{0,1,2,3}}, to_apply=%add
  %gather-start = (bf16[512,128]{1,0}, bf16[2048,128]{1,0}) all-gather-start(%w), dimensions={0}
  %gather-done = bf16[2048,128]{1,0} all-gather-done(%gather-start)
  %fused = bf16[512,128]{1,0:T(8,128)(2,1)} fusion(%gathered), kind=kCustom, calls=%all-reduce-scatter.1
  %beside = bf16[2048,128]{1,0:T(8,128)(2,1)} all-reduce(%gather-done), replica_groups={{0,1,2,3}}, to_apply=%add
  %more = f32[6,512,128]{2,1,0:T(8,128)} fusion(%grads, %beside), kind=kLoop, calls=%take
  ROOT %next = (s32[]{:T(128)}, bf16[512,128]{1,0:T(8,128)(2,1)}, f32[6,512,128]{2,1,0:T(8,128)}) tuple(%i, %fused, %more)
}

%condition (state.1: (s32[], bf16[512,128], f32[6,512,128])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, bf16[512,128]{1,0:T(8,128)(2,1)}, f32[6,512,128]{2,1,0:T(8,128)}) parameter(0)
  %six = s32[]{:T(128)} constant(6)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %six), direction=LT
}

ENTRY %main (p: (s32[], bf16[512,128], f32[6,512,128])) -> f32[] {
  %p = (s32[]{:T(128)}, bf16[512,128]{1,0:T(8,128)(2,1)}, f32[6,512,128]{2,1,0:T(8,128)}) parameter(0)
  %loop = (s32[]{:T(128)}, bf16[512,128]{1,0}, f32[6,512,128]{2,1,0}) while(%p), condition=%condition, body=%body
  %norm = f32[]{:T(128)} constant(1)
  ROOT %total = f32[]{:T(128)} all-reduce(%norm), replica_groups={{0,1,2,3}}, to_apply=%add
}
"""


def test_what_libtpu_prints_is_counted_once():
    whole = 2048 * 128 * 2
    assert traffic(TPU_TEXT) == {"all-gather": 6 * 2 * whole, "reduce-scatter": 6 * 2 * whole, "all-reduce": 8}


def test_other_texts_are_refused():
    with pytest.raises(ValueError, match="not an HLO module"):
        parse("no program")
