"""Collectives of a compiled program, read in its HLO text: bytes per device by kind, loops multiplied out.

A device's bytes are those of the whole array that is gathered, reduced or exchanged; an all-reduce counts twice
(it is a reduce-scatter and an all-gather).  libtpu prints a reduce-scatter as an all-reduce whose result is
sliced, and on some tori an all-gather as an all-reduce of an array that is zero but for the device's own part.
Both are counted once, as what they are.

Limits: what a Pallas kernel sends is not in the text, and the text does not say how often XLA's own pipelined
loops (windowed einsum) run.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)
_BITS = {"pred": 8, "bf16": 16, "token": 0} | {f"{k}{n}": n for k in "sufc" for n in (4, 8, 16, 32, 64, 128)}
_SHAPE = re.compile(r"\b([a-z]+[0-9a-z]*)\[([\d,]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"(?:^|[\s)}])([a-z][a-z\-]*)\(([^)]*)\)")
_CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_SEE_THROUGH = {"bitcast", "copy", "reshape", "convert", "transpose", "slice", "get-tuple-element"}


@dataclass(frozen=True)
class Instruction:
    """One line of HLO: its name, operation, type, arguments, and what follows them."""

    name: str
    operation: str
    type: str
    arguments: str
    rest: str
    root: bool

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.arguments)


@dataclass(frozen=True)
class Program:
    """The computations of an HLO text by name, and which one is run."""

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str


def traffic(hlo: str, dynamic_trips: float = 1) -> dict[str, float]:
    """Bytes per device by kind of collective, for one run of a compiled program (`compiled.as_text()`).

    Loops whose bound is not a constant count `dynamic_trips` times, so the difference between 1 and 0 is what
    happens inside them.
    """
    program = parse(hlo)
    moved: Counter[str] = Counter()
    for kind, size, times in _collectives(program, program.entry, 1, dynamic_trips):
        moved[kind] += size * times
    return {kind: total for kind, total in moved.items() if total}


def per_micro_step(hlo: str, micro_batches: int) -> dict[str, float]:
    """Bytes per device by kind in one micro-batch, of a step that loops over them.

    The loop's bound is either unknown to the compiler, or the constant `micro_batches`.
    """
    once, never = traffic(hlo, 1), traffic(hlo, 0)
    inside = {kind: size - never.get(kind, 0) for kind, size in once.items()}
    if not any(inside.values()):
        inside = {kind: size / micro_batches for kind, size in once.items()}
    return {kind: size for kind, size in inside.items() if size}


def parse(hlo: str) -> Program:
    """Instructions by computation.  Raises ValueError for a text without an entry computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in _COMMENT.sub("", hlo).split("\n"):
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif line.rstrip() == "}":  # not "}}, ...": the attributes of a kernel may have lines of their own
            current = None
        elif current is not None and (found := _instruction(line)):
            current[found.name] = found
    if not entry:
        raise ValueError("not an HLO module: it has no ENTRY computation")
    return Program(computations, entry)


def _instruction(line: str) -> Instruction | None:
    match = _LINE.match(line)
    operation = _OPERATION.search(match[3]) if match else None
    if not operation:
        return None
    text = match[3]
    return Instruction(
        name=match[2],
        operation=operation[1],
        type=text[: operation.start(1)],
        arguments=operation[2],
        rest=text[operation.end() :],
        root=bool(match[1]),
    )


def _collectives(
    program: Program, computation: str, times: float, dynamic: float
) -> Iterator[tuple[str, float, float]]:
    """(kind, bytes, how often) of every collective that a computation and what it calls contains."""
    body = program.computations.get(computation, {})
    for found in body.values():
        kind = found.operation.removesuffix("-start")
        if kind in KINDS:
            yield *_moved(program, body, found, kind), times
            continue
        if found.operation.endswith(("-done", "-update")):
            continue
        trips = _trips(program, found, dynamic) if found.operation == "while" else 1
        for called in _called(found):
            yield from _collectives(program, called, times * trips, dynamic)


def _called(found: Instruction) -> list[str]:
    names = _CALLED.findall(found.rest)
    for branches in _BRANCHES.findall(found.rest):
        names += re.findall(r"[\w.\-]+", branches)
    return names


def _trips(program: Program, loop: Instruction, dynamic: float) -> float:
    """Iterations of a loop: as XLA annotates them, else the constant that its condition compares with."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest):
        return int(known[1])
    condition = program.computations[re.search(r"condition=%?([\w.\-]+)", loop.rest)[1]]
    root = next(i for i in condition.values() if i.root)
    bound = condition.get(root.operands[-1]) if root.operands else None
    if root.operation == "fusion":  # the comparison may be wrapped, its constant inside or outside
        inside = program.computations[_called(root)[0]]
        compare = next(i for i in inside.values() if i.root)
        bound = inside[compare.operands[-1]]
        if bound.operation == "parameter":
            bound, root = condition.get(root.operands[int(bound.arguments)]), compare
        else:
            root = compare
    counts = "direction=LT" in root.rest and bound is not None and bound.operation == "constant"
    return int(bound.arguments) if counts else dynamic


# ---------------------------------------------------------------------------------------- what a collective is


def _moved(program: Program, body: Mapping[str, Instruction], found: Instruction, kind: str):
    """(kind, bytes) of one collective instruction."""
    size = _bytes(found.type, last_only=found.operation.endswith("-start") and kind != "all-reduce")
    if kind == "reduce-scatter":
        return kind, sum(_bytes(body[name].type) for name in found.operands)
    if kind != "all-reduce":
        return kind, size
    if all(_is_own_part(program, body[name]) for name in found.operands):
        return "all-gather", size
    if _only_sliced(program, body, found.name):
        return "reduce-scatter", size
    return kind, 2 * size


def _bytes(type_text: str, last_only: bool = False) -> int:
    """Bytes of a type.  The result of a started collective is (operands, results, ...): the largest counts."""
    sizes = [
        math.prod(int(d) for d in dims.split(",") if d) * _BITS.get(kind, 0) // 8
        for kind, dims in _SHAPE.findall(type_text)
    ]
    return max(sizes, default=0) if last_only else sum(sizes)


def _is_own_part(program: Program, operand: Instruction) -> bool:
    """Whether an array is the device's part, written into an array of zeros."""
    if operand.operation == "fusion":
        inside = program.computations[_called(operand)[0]]
        return _is_own_part(program, next(i for i in inside.values() if i.root))
    return operand.operation == "dynamic-update-slice"


def _only_sliced(program: Program, body: Mapping[str, Instruction], name: str) -> bool:
    """Whether everything that reads a value takes a dynamic slice of it."""
    users = [i for i in body.values() if name in i.operands]
    return bool(users) and all(_slices(program, body, user, name) for user in users)


def _slices(program: Program, body: Mapping[str, Instruction], user: Instruction, name: str) -> bool:
    if user.operation == "dynamic-slice":
        return user.operands[0] == name
    if user.operation in _SEE_THROUGH:
        return _only_sliced(program, body, user.name)
    if user.operation != "fusion":
        return False
    inside = program.computations[_called(user)[0]]
    at = {str(i) for i, operand in enumerate(user.operands) if operand == name}
    parameters = [i.name for i in inside.values() if i.operation == "parameter" and i.arguments in at]
    return all(_only_sliced(program, inside, parameter) for parameter in parameters)
