"""Collectives of a compiled program, read in its HLO text: bytes per device by kind, loops multiplied out.

A device's bytes are those of the whole array that is gathered, reduced or exchanged; an all-reduce counts twice
(it is a reduce-scatter and an all-gather).  libtpu prints a reduce-scatter as an all-reduce whose result is
sliced, and on some tori an all-gather as an all-reduce of an array that is zero but for the device's own part.
Both are counted once, as what they are.

What a Pallas kernel sends is not in the text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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


class Frame(NamedTuple):
    """A computation that is being run: its instructions by name, and the loop whose body or condition it is."""

    body: Mapping[str, Instruction]
    loop: Instruction | None


def traffic(hlo: str, dynamic_trips: float = 1) -> dict[str, float]:
    """Bytes per device by kind of collective, for one run of a compiled program (`compiled.as_text()`).

    Loops whose bound is not a constant count `dynamic_trips` times, so the difference between 1 and 0 is what
    happens inside them.
    """
    program = parse(hlo)
    moved: Counter[str] = Counter()
    entry = Frame(program.computations[program.entry], None)
    for kind, size, times in _collectives(program, [entry], 1, dynamic_trips):
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
    program: Program, frames: list[Frame], times: float, dynamic: float
) -> Iterator[tuple[str, float, float]]:
    """(kind, bytes, how often) of every collective in the innermost frame and in what it calls."""
    for found in frames[-1].body.values():
        kind = found.operation.removesuffix("-start")
        if kind in KINDS:
            yield *_moved(program, frames[-1].body, found, kind), times
            continue
        if found.operation.endswith(("-done", "-update")):
            continue
        loop = found if found.operation == "while" else None
        trips = 1 if loop is None else _trips(program, frames, loop)
        for name in _called(found):
            inside = Frame(program.computations.get(name, {}), loop)
            yield from _collectives(
                program, [*frames, inside], times * (dynamic if trips is None else trips), dynamic
            )


def _called(found: Instruction) -> list[str]:
    names = _CALLED.findall(found.rest)
    for branches in _BRANCHES.findall(found.rest):
        names += re.findall(r"[\w.\-]+", branches)
    return names


# ---------------------------------------------------------------------------------------- how often a loop runs


def _trips(program: Program, frames: list[Frame], loop: Instruction) -> int | None:
    """Iterations of a `while`, as XLA annotates them or as condition and body say; None if they are dynamic."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.rest):
        return int(known[1])
    condition = Frame(program.computations[re.search(r"condition=%?([\w.\-]+)", loop.rest)[1]], loop)
    body = Frame(program.computations[re.search(r"body=%?([\w.\-]+)", loop.rest)[1]], loop)
    compare = _root(condition.body)
    if compare.operation == "fusion":  # a wrapped comparison of what the fusion is given
        given, inside = compare.operands, program.computations[_called(compare)[0]]
        compare = _root(inside)
        sides = [given[int(inside[name].arguments)] for name in compare.operands]
    else:
        sides = compare.operands
    if "direction=LT" not in compare.rest or (index := _index(condition.body, sides[0])) is None:
        return None
    start = _integer([*frames, body], index)
    bound = _integer([*frames, condition], sides[1])
    step = _step([*frames, body], index)
    if bound is None or not step:
        return None
    return max(0, -(-(bound - (start or 0)) // step))


def _step(frames: list[Frame], index: int) -> int | None:
    """What a loop's body adds to element `index` of its state."""
    body = frames[-1].body
    advance = body.get(_root(body).operands[index])
    if advance is None or advance.operation != "add":
        return None
    values = [_integer(frames, name) for name in advance.operands if _index(body, name) != index]
    return values[0] if len(values) == 1 else None


def _integer(frames: list[Frame], value: str | int) -> int | None:
    """The constant behind a name in the innermost frame, or behind an element of the state its loop began with.

    Constants reach the body of a loop by its state, too; what a body changes is not looked for there.
    """
    *outside, (body, loop) = frames
    if isinstance(value, int):
        state = outside[-1].body.get(loop.operands[0]) if loop and outside else None
        return _integer(outside, state.operands[value]) if state and state.operation == "tuple" else None
    found = body.get(value)
    if found is None:
        return None
    if found.operation == "constant":
        return int(found.arguments) if found.arguments.lstrip("-").isdigit() else None
    if found.operation in ("copy", "bitcast", "convert"):
        return _integer(frames, found.operands[0])
    index = _index(body, value)
    return None if index is None else _integer(frames, index)


def _index(body: Mapping[str, Instruction], name: str) -> int | None:
    """Which element of the computation's parameter a name is."""
    found = body.get(name)
    if found is not None and found.operation == "copy":
        return _index(body, found.operands[0])
    if found is None or found.operation != "get-tuple-element":
        return None
    source = body.get(found.operands[0])
    is_state = source is not None and source.operation == "parameter"
    return int(re.search(r"index=(\d+)", found.rest)[1]) if is_state else None


def _root(body: Mapping[str, Instruction]) -> Instruction:
    return next(i for i in body.values() if i.root)


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
        return _is_own_part(program, _root(inside))
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
