"""FLOPs that a traced program performs, walked in its jaxpr: recomputation included, nothing compiled.

XLA's own `cost_analysis` counts the body of a loop once and sees nothing inside a Pallas kernel, so it cannot
be used for a model that scans its layers.  Here a scan counts its length; a loop whose bound is only known at
run time counts as often as the caller says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.interpreters.partial_eval import dce_jaxpr


@dataclass(frozen=True)
class Unseen:
    """What a jaxpr does not say.

    `trips` are the iterations of loops whose bound is a traced value, by a part of the loop's path: the names
    of the functions and scopes around it.  The first entry that fits counts; a loop that none fits runs once.
    `kernels` gives the FLOPs of Pallas kernels on one device by a part of the kernel's name; a kernel without
    an entry counts its own `cost_estimate`.
    """

    trips: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgramFlops:
    """FLOPs over all devices by kind of operation, and the kernels about which nothing is known."""

    by_kind: Mapping[str, float]
    unknown_kernels: tuple[str, ...]

    @property
    def total(self) -> float:
        return sum(self.by_kind.values())


def program_flops(program: ClosedJaxpr, unseen: Unseen | None = None) -> ProgramFlops:
    """FLOPs of the matrix products, convolutions and kernels of a traced function.

    Results that nothing reads are left out, as the compiler leaves them out.  Shapes outside shard_map are
    those of whole arrays; a shard_map's body is counted for each device that runs it.  `ragged_dot` counts as
    the grouped product that it means; what a compiler makes of it (dense products, on some) shows only in the
    compiled program.  Of the branches of a `cond`, the dearest counts.
    """
    walk = _Walk(unseen or Unseen())
    counted: Counter[str] = Counter()
    walk.add(program.jaxpr, 1, "", counted)
    return ProgramFlops(dict(counted), tuple(sorted(walk.unknown)))


class _Walk:
    """One pass over a jaxpr; `unknown` collects the names of kernels without FLOPs."""

    def __init__(self, unseen: Unseen) -> None:
        self.unseen = unseen
        self.unknown: set[str] = set()

    def add(self, jaxpr: Jaxpr, times: float, path: str, counted: Counter[str]) -> None:
        # At each level anew, because the body of a while loop is not cleaned from outside.
        live, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        for eqn in live.eqns:
            kind = eqn.primitive.name
            here = f"{path}/{eqn.source_info.name_stack}"
            if kind in _PRODUCTS:
                counted[kind] += times * _PRODUCTS[kind](eqn)
            elif kind == "pallas_call":
                name = kernel_name(eqn)
                counted[f"kernel {name}"] += times * self._kernel_flops(name, eqn)
            elif kind == "cond":
                counted.update(self._dearest(eqn.params["branches"], times, here))
            elif kind == "while":
                trips = static_trips(eqn)
                trips = _fitting(self.unseen.trips, here, 1) if trips is None else trips
                self.add(eqn.params["body_jaxpr"].jaxpr, times * trips, here, counted)
            else:
                for inner in _inner(eqn):
                    self.add(inner, times * _repeats(eqn), f"{here}/{eqn.params.get('name', '')}", counted)

    def _dearest(self, branches: Sequence[ClosedJaxpr], times: float, path: str) -> Counter[str]:
        each: list[Counter[str]] = [Counter() for _ in branches]
        for branch, counted in zip(branches, each, strict=True):
            self.add(branch.jaxpr, times, path, counted)
        return max(each, key=lambda c: c.total())

    def _kernel_flops(self, name: str, eqn: JaxprEqn) -> float:
        flops = _fitting(self.unseen.kernels, name, None)
        if flops is None and (estimate := eqn.params.get("cost_estimate")) is not None:
            return estimate.flops
        if flops is None:
            self.unknown.add(name)
        return flops or 0


def _fitting(values: Mapping[str, float], name: str, default: float | None) -> float | None:
    return next((value for part, value in values.items() if part in name), default)


def saved_bytes(program: ClosedJaxpr, layers: int) -> int:
    """Bytes, over all devices, that the scan over `layers` layers hands from the forward to the backward pass.

    They are what it stacks up; what is moved to the memory of the host is left out.
    """
    most = 0
    for eqn in _equations(program.jaxpr):
        if eqn.primitive.name == "scan" and eqn.params["length"] == layers and not eqn.params["reverse"]:
            stacked = [v.aval for v in eqn.outvars[eqn.params["num_carry"] :]]
            most = max(most, sum(a.size * a.dtype.itemsize for a in stacked if not _on_host(a)))
    return most


def _on_host(aval: Any) -> bool:
    return "host" in str(getattr(aval, "memory_space", "")).lower()


def _equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in _inner(eqn):
            yield from _equations(inner)


def kernel_name(eqn: JaxprEqn) -> str:
    """The name that a pallas_call was given, or that of its kernel function, or "unnamed"."""
    named = eqn.params.get("name_and_src_info")
    return str(eqn.params.get("name") or (named.name if named else "unnamed"))


def static_trips(eqn: JaxprEqn) -> int | None:
    """Iterations of a `while` that counts from one literal to another in literal steps; None for any other."""
    condition, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    carried = eqn.invars[eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] :]
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
        return None
    at = condition.invars[eqn.params["cond_nconsts"] :]
    index, bound = condition.eqns[0].invars
    position = next((i for i, v in enumerate(at) if v is index), None)
    if position is None:
        return None
    if not isinstance(bound, Literal):  # a bound that is carried must come back unchanged
        held = next((i for i, v in enumerate(at) if v is bound), None)
        if held is None or body.outvars[held] is not body.invars[eqn.params["body_nconsts"] + held]:
            return None
        bound = carried[held]
    step = _literal_step(body, eqn.params["body_nconsts"] + position, position)
    start = carried[position]
    if step is None or not isinstance(bound, Literal) or not isinstance(start, Literal):
        return None
    return max(0, -(-(int(bound.val) - int(start.val)) // step))


def _literal_step(body: Jaxpr, into: int, out: int) -> int | None:
    """By how much a body advances its counter, when by a positive literal."""
    for eqn in body.eqns:
        if body.outvars[out] in eqn.outvars and eqn.primitive.name == "add":
            counter, step = eqn.invars
            if counter is body.invars[into] and isinstance(step, Literal) and step.val > 0:
                return int(step.val)
    return None


def _repeats(eqn: JaxprEqn) -> int:
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name == "shard_map":
        mesh, axes = eqn.params["mesh"], eqn.params.get("newly_manual_axes", eqn.params.get("manual_axes"))
        return math.prod(mesh.shape[axis] for axis in axes)
    return 1


def _inner(eqn: JaxprEqn) -> list[Jaxpr]:
    """The programs that an equation runs: of jit, remat, custom derivatives, scan, shard_map."""
    values: list[Any] = []
    for value in eqn.params.values():
        values += value if isinstance(value, tuple | list) else [value]
    return [v.jaxpr if isinstance(v, ClosedJaxpr) else v for v in values if isinstance(v, ClosedJaxpr | Jaxpr)]


# ------------------------------------------------------------------------------------------------- products


def _dot_flops(eqn: JaxprEqn) -> int:
    (left, _), _ = eqn.params["dimension_numbers"]
    return 2 * math.prod(eqn.outvars[0].aval.shape) * _size(eqn, left)


def _ragged_flops(eqn: JaxprEqn) -> int:
    """Each row of the ragged side meets one group, so the groups do not multiply the work."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (left, _), _ = numbers.dot_dimension_numbers
    flops = 2 * math.prod(eqn.outvars[0].aval.shape) * _size(eqn, left)
    # In the gradient of the weights the rows are contracted, each in its own group, and groups are an output.
    return flops // eqn.outvars[0].aval.shape[0] if set(numbers.lhs_ragged_dimensions) <= set(left) else flops


def _size(eqn: JaxprEqn, dimensions: Sequence[int]) -> int:
    return math.prod(eqn.invars[0].aval.shape[i] for i in dimensions)


def _convolution_flops(eqn: JaxprEqn) -> int:
    kernel = eqn.invars[1].aval.shape
    features = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
    return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) // features


_PRODUCTS: Mapping[str, Callable[[JaxprEqn], int]] = {
    "dot_general": _dot_flops,
    "ragged_dot_general": _ragged_flops,
    "conv_general_dilated": _convolution_flops,
}
