"""The device mesh, and the one table from logical axes (what a dimension is) to mesh axes (where it lies).

Mesh axes:  data     copies of the model, each with its own rows
            fsdp     rows, and the parameters that are not in use
            expert   rows, and the experts (their tokens are exchanged, not their matrices)
            context  parts of each row, and parameters as fsdp
            tensor   heads, MLP widths, vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from carr_jax.records import InputError

MESH_AXES = ("data", "fsdp", "expert", "context", "tensor")
ROW_AXES = ("data", "fsdp", "expert")  # each of their devices holds other rows
SHARED = ("fsdp", "expert", "context")  # a parameter is cut over these, and gathered where it is used

# Two logical axes of one array must not share a mesh axis: `mesh_spec` checks it for every parameter.
RULES: Mapping[str, str | tuple[str, ...] | None] = {
    # activations
    "batch": ROW_AXES,
    "sequence": "context",
    "residual": "tensor",  # width of the residual stream between layers
    "active_heads": "tensor",
    "active_mlp": "tensor",
    # parameters
    "layers": None,  # the scan walks over it
    "embed": SHARED,
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "experts": ("expert", "fsdp", "context"),  # whole experts, so that no matrix is cut into thin strips
    "embed_expert": None,
    "mlp_expert": "tensor",
    "router": None,
}


def mesh_shape(sizes: Mapping[str, int], devices: int) -> dict[str, int]:
    """Sizes by mesh axis, an axis of -1 taking all devices that the others leave.

    Raises InputError when the sizes do not fit the number of devices.
    """
    shape = {axis: int(sizes[axis]) for axis in MESH_AXES}
    fixed = math.prod(n for n in shape.values() if n > 0)
    free = [axis for axis, n in shape.items() if n == -1]
    text = " x ".join(f"{axis} {n}" for axis, n in shape.items())
    if len(free) > 1:
        raise InputError(f"config.mesh: only one axis may be -1, got {text}")
    if free and devices % fixed:
        raise InputError(f"config.mesh: {text} does not divide the {devices} devices that are there")
    if free:
        shape[free[0]] = devices // fixed
    elif fixed > devices:
        raise InputError(f"config.mesh: {text} needs {fixed} devices, have {devices}")
    return shape


def make_mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of `config.mesh` (sizes by axis) over the first devices.

    Axes are Auto: with the default of recent jax (Explicit), an embedding lookup in a sharded table is a type
    error.  Raises InputError when the devices do not fit.
    """
    devices = jax.devices() if devices is None else devices
    shape = tuple(mesh_shape(sizes, len(devices)).values())
    used = math.prod(shape)
    if jax.process_count() > 1 and used < len(devices):
        raise InputError(f"config.mesh uses {used} of {len(devices)} devices; several processes need all")
    # Not jax.make_mesh, which refuses meshes whose axes are no products of a TPU slice's own: 2 x 8 on 4 x 4.
    grid = create_device_mesh(shape, devices[:used], allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def row_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a micro-batch are dealt."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def mesh_spec(logical: Sequence[str | None], rules: Mapping[str, Any] = RULES) -> PartitionSpec:
    """Translate logical axis names to mesh axes.

    Raises KeyError for a logical axis without a rule, ValueError when two dimensions fall on one mesh axis.
    """
    axes = [None if name is None else rules[name] for name in logical]
    used = [a for axis in axes if axis for a in ((axis,) if isinstance(axis, str) else axis)]
    if len(used) != len(set(used)):
        raise ValueError(f"logical axes {tuple(logical)} collide on mesh axes {tuple(axes)}")
    return PartitionSpec(*axes)


def tree_shardings(logical: Any, shapes: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each array of a tree, from its logical axes and its shape.

    Raises InputError when a dimension cannot be cut into as many equal parts as its mesh axes have devices.
    """

    def sharding(names: PartitionSpec, array: jax.ShapeDtypeStruct) -> NamedSharding:
        spec = mesh_spec(names)
        for name, axes, size in zip(names, spec, array.shape, strict=True):
            parts = _parts(mesh, axes)
            if size % parts:
                where = " * ".join(f"config.mesh.{a}" for a in _used(mesh, axes))
                raise InputError(f"{where} = {parts} does not divide {name}={size} of this model")
        return NamedSharding(mesh, spec)

    return jax.tree.map(sharding, logical, shapes)


def constrain(x: jax.Array, mesh: Mesh | None, *logical: str | None) -> jax.Array:
    """Asks the compiler to lay out an intermediate value so; does nothing without a mesh."""
    if mesh is None or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, mesh_spec(logical)))


def per_device(
    function: Callable, mesh: Mesh | None, inputs: Sequence[PartitionSpec], outputs: Any
) -> Callable:
    """`function` on each device's own parts (jax.shard_map); the function itself where there is no mesh.

    Without a mesh, or on one device, collectives over mesh axes must not be called: see `gather`.
    """
    if mesh is None or mesh.size == 1:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=tuple(inputs), out_specs=outputs, check_vma=False)


def used_axes(mesh: Mesh | None, axes: Sequence[str]) -> tuple[str, ...]:
    """Those of `axes` that have more than one device."""
    return () if mesh is None else tuple(a for a in axes if mesh.shape[a] > 1)


def gather(x: jax.Array, mesh: Mesh | None, axes: Sequence[str], dimension: int) -> jax.Array:
    """Inside `per_device`: the whole of `x`, which is cut along `dimension` over `axes`.

    Its transpose sums a gradient over the devices and leaves each its part, in one collective.
    """
    names = used_axes(mesh, axes)
    return jax.lax.all_gather(x, names, axis=dimension, tiled=True) if names else x


def batch_sharding(mesh: Mesh, leading: int = 0) -> NamedSharding:
    """For arrays [..., B, S] with `leading` axes in front that are not cut."""
    return NamedSharding(mesh, mesh_spec((None,) * leading + ("batch", "sequence")))


def _used(mesh: Mesh, axes: Any) -> list[str]:
    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
    return [a for a in names if mesh.shape[a] > 1]


def _parts(mesh: Mesh, axes: Any) -> int:
    return math.prod(mesh.shape[a] for a in _used(mesh, axes))
