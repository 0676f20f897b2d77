"""Grouped matrix product: rows sorted by group, each group with a matrix of its own; forward and backward.

Three kernels behind one seam, and one backward pass over them.  None expands a group to all rows, as the
weight gradient of `jax.lax.ragged_dot` does.

Dimension letters: P rows, G groups of rows, E matrices (E <= G), M and N their sides.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def grouped_matmul(
    x_PxM: jax.Array, w_ExMxN: jax.Array, sizes_G: jax.Array, kernel: str, interpret: bool = False
) -> jax.Array:
    """[P, N] in x's dtype: the first sizes[0] rows times w[0], the next sizes[1] times w[1], and so on.

    `sizes` (int32) may have more groups than there are matrices: rows of the others give 0, as do rows behind
    the last group.  `kernel` is tiled (any device), megablox (TPU) or tokamax (NVIDIA).
    """
    return _product(x_PxM, w_ExMxN, sizes_G, kernel, interpret)


def _forward(x, w, sizes, kernel, interpret):
    return _product(x, w, sizes, kernel, interpret), (x, w, sizes)


def _backward(kernel, interpret, kept, dy):
    x, w, sizes = kept
    dx = _product(dy, w.swapaxes(1, 2), sizes, kernel, interpret)
    return dx, _outer(x, dy, sizes, w.shape[0], kernel, interpret).astype(w.dtype), None


grouped_matmul.defvjp(_forward, _backward)


def _product(x, w, sizes, kernel: str, interpret: bool) -> jax.Array:
    if kernel == "tiled":
        return tiled_product(x, w, sizes)
    if kernel == "tokamax":
        return tokamax_product(x, w, sizes)
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    return gmm(x, w, sizes, x.dtype, _tiling(x, w.shape[1], w.shape[2]), interpret=interpret)


def _outer(x, dy, sizes, matrices: int, kernel: str, interpret: bool) -> jax.Array:
    """[E, M, N]: for each group the sum over its rows of x^T dy."""
    if kernel == "tiled":
        return tiled_outer(x, dy, sizes, matrices)
    if kernel == "tokamax":
        return tokamax_outer(x, dy, sizes, matrices)
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    how = dict(num_actual_groups=matrices, interpret=interpret)
    return tgmm(x.swapaxes(0, 1), dy, sizes, x.dtype, _tiling(x, x.shape[1], dy.shape[1]), **how)


def _tiling(x: jax.Array, m: int, n: int) -> tuple[int, int, int]:
    """Rows and sides of a megablox tile; its rows must divide all rows."""
    rows = next(t for t in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1) if x.shape[0] % t == 0)
    return rows, min(1024, m), min(1024, n)


# ------------------------------------------------------------------------------------------ NVIDIA, by tokamax

_NVIDIA = ("mosaic", "triton")  # never its "xla", which expands the weight gradient to all experts
_BY_GROUP = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)


def tokamax_product(x, w, sizes, implementation=_NVIDIA) -> jax.Array:
    """`grouped_matmul` by the tokamax library (extra `kernels`)."""
    tokamax = _tokamax()
    y = tokamax.ragged_dot(
        x, w, sizes[: w.shape[0]], preferred_element_type=x.dtype, implementation=implementation
    )
    return _owned(y, sizes, w.shape[0])


def tokamax_outer(x, dy, sizes, matrices: int, implementation=_NVIDIA) -> jax.Array:
    """[E, M, N]: for each group the sum over its rows of x^T dy."""
    tokamax = _tokamax()
    x, how = _owned(x, sizes, matrices), dict(preferred_element_type=jnp.float32, implementation=implementation)
    return tokamax.ragged_dot_general(x, dy, sizes[:matrices], _BY_GROUP, **how)


def _tokamax() -> Any:
    """The library; it would read the command line of the program for flags of its own, and stop at ours."""
    import tokamax
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["tokamax"])
    return tokamax


def _owned(x: jax.Array, sizes: jax.Array, matrices: int) -> jax.Array:
    """Rows of groups that have a matrix; the others zeroed."""
    return jnp.where(jnp.arange(x.shape[0])[:, None] < sizes[:matrices].sum(), x, 0)


# ------------------------------------------------------------------------------------------- tiles of one group


class Tiles(NamedTuple):
    """Row tiles, none of which holds rows of two groups: int32 [T] each, and how many there are."""

    group: jax.Array
    start: jax.Array
    rows: jax.Array
    count: jax.Array


def tile_size(rows: int, matrices: int) -> int:
    """A power of two such that the unused rows of the last tile of each group add about 3 %."""
    fair = max(rows // (16 * matrices), 1)
    return min(max(1 << (fair.bit_length() - 1), 16), 512)


def tiles_of(sizes_G: jax.Array, matrices: int, rows: int, tile: int) -> Tiles:
    """The tiles of the first `matrices` groups, in order; of T = rows / tile + matrices, `count` are real."""
    sizes = sizes_G[:matrices].astype(jnp.int32)
    ends = jnp.cumsum(sizes)
    per_group = -(-sizes // tile)
    last = jnp.cumsum(per_group)
    index = jnp.arange(rows // tile + matrices, dtype=jnp.int32)
    group = jnp.minimum(jnp.searchsorted(last, index, side="right"), matrices - 1).astype(jnp.int32)
    start = ends[group] - sizes[group] + (index - last[group] + per_group[group]) * tile
    return Tiles(group, start, jnp.clip(ends[group] - start, 0, tile), last[-1])


def tiled_product(x_PxM: jax.Array, w_ExMxN: jax.Array, sizes_G: jax.Array) -> jax.Array:
    """`grouped_matmul` as a loop over tiles; each tile is one plain product."""
    (p, _), (e, _, n) = x_PxM.shape, w_ExMxN.shape
    tile = tile_size(p, e)
    tiles = tiles_of(sizes_G, e, p, tile)
    x = jnp.pad(x_PxM, ((0, tile), (0, 0)))

    def one(t, y):
        # What a tile writes behind its group is zero, and overwritten by the next group.
        w = lax.dynamic_index_in_dim(w_ExMxN, tiles.group[t], keepdims=False)
        product = jnp.matmul(_rows(x, tiles, t, tile), w, preferred_element_type=jnp.float32)
        return lax.dynamic_update_slice_in_dim(y, product.astype(y.dtype), tiles.start[t], 0)

    return lax.fori_loop(0, tiles.count, one, jnp.zeros((p + tile, n), x.dtype))[:p]


def tiled_outer(x_PxM: jax.Array, dy_PxN: jax.Array, sizes_G: jax.Array, matrices: int) -> jax.Array:
    """float32 [E, M, N]: sums of x^T dy over the rows of each group, tile by tile."""
    p, m = x_PxM.shape
    tile = tile_size(p, matrices)
    tiles = tiles_of(sizes_G, matrices, p, tile)
    x, dy = (jnp.pad(a, ((0, tile), (0, 0))) for a in (x_PxM, dy_PxN))

    def one(t, total):
        more = lax.dot_general(
            _rows(x, tiles, t, tile),
            lax.dynamic_slice_in_dim(dy, tiles.start[t], tile),
            (((0,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        return total.at[tiles.group[t]].add(more)

    return lax.fori_loop(0, tiles.count, one, jnp.zeros((matrices, m, dy.shape[1]), jnp.float32))


def _rows(x: jax.Array, tiles: Tiles, t: jax.Array, tile: int) -> jax.Array:
    """The rows of tile t, those behind its group zeroed."""
    own = jnp.arange(tile)[:, None] < tiles.rows[t]
    return jnp.where(own, lax.dynamic_slice_in_dim(x, tiles.start[t], tile), 0)
