"""The device mesh, and the one table from logical axes (what a dimension is) to mesh axes (where it lies)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import logical_axes, param_shapes
from carr_jax.records import InputError

MESH_AXES = ("data", "fsdp", "tensor")

# Two logical axes of one array must not share a mesh axis: `mesh_spec` checks it for every parameter.
RULES: Mapping[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "layers": None,  # the scan walks over it
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "experts": None,
    "mlp_expert": "tensor",
    "router": None,
}


def make_mesh(shape: tuple[int, int, int], devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh of `shape` over (data, fsdp, tensor).  Raises InputError when the devices do not fit.

    Axes are Auto: with the default of recent jax (Explicit), an embedding lookup in a sharded table is a type
    error.
    """
    devices = jax.devices() if devices is None else devices
    wanted = shape[0] * shape[1] * shape[2]
    if wanted > len(devices):
        raise InputError(f"mesh {shape} over {MESH_AXES} needs {wanted} devices, have {len(devices)}")
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices[:wanted])


def mesh_spec(logical: PartitionSpec, rules: Mapping[str, Any] = RULES) -> PartitionSpec:
    """Translate logical axis names to mesh axes.

    Raises KeyError for a logical axis without a rule, ValueError when two dimensions fall on one mesh axis.
    """
    axes = [None if name is None else rules[name] for name in logical]
    used = [a for axis in axes if axis for a in ((axis,) if isinstance(axis, str) else axis)]
    if len(used) != len(set(used)):
        raise ValueError(f"logical axes {tuple(logical)} collide on mesh axes {tuple(axes)}")
    return PartitionSpec(*axes)


def param_shardings(config: ModelConfig, mesh: Mesh) -> Any:
    """The tree of `init_params` with a NamedSharding for each array.

    Raises InputError when a dimension cannot be cut into as many equal parts as its mesh axis has devices.
    """

    def sharding(logical: PartitionSpec, shape: jax.ShapeDtypeStruct) -> NamedSharding:
        spec = mesh_spec(logical)
        for name, axis, size in zip(logical, spec, shape.shape, strict=True):
            if axis is not None and size % mesh.shape[axis]:
                raise InputError(
                    f"config.mesh.{axis}={mesh.shape[axis]} does not divide {name}={size} of this model"
                )
        return NamedSharding(mesh, spec)

    return jax.tree.map(sharding, logical_axes(config), param_shapes(config))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For arrays [B, ...]: rows are split over data and fsdp, the rest is whole."""
    return NamedSharding(mesh, mesh_spec(PartitionSpec("batch")))
