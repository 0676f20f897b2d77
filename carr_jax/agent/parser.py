"""From the text of one sampled turn to its thought, content and tool calls.

The text starts inside the think block that the prompt opened, and ends with the stop token.  The checks and
their order are the reference's: a turn is ill-formed when it is not what the template would write for what was
parsed.  The default forgives JSON that is spelled differently but means the same; `strict` demands byte
equality.  Nothing here evaluates model text, and all work is bounded by a constant times its length.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from carr_jax.agent.chat import CALL, END, END_CALL, END_THINK, render_bodies, render_turn
from carr_jax.agent.tools import TOOLS
from carr_jax.records import ToolCall, ToolResult

SEPARATOR = f"\n{END_THINK}\n\n"
END_OF_TEXT = "<|endoftext|>"
MAX_CALLS = 256
MAX_DEPTH = 32
MAX_NUMBER_CHARS = 400
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True)
class ParsedTurn:
    """What a turn says.  `ends` when the episode is over after it: no complete call, or the wrong stop token.

    A call that cannot be executed carries its error as `result`.  `ill_formed` is the first defect found.
    """

    thought: str
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    ill_formed: str | None = None
    noncanonical: bool = False
    ends: bool = True


def parse_turn(
    text: str, finish: str, *, tools: Sequence[Mapping[str, Any]] = TOOLS, strict: bool = False
) -> ParsedTurn:
    """Parse a turn; `finish` is the engine's.  A turn cut off ("length", "abort") is split but not judged."""
    if finish != "stop":
        thought, _, content = text.partition(SEPARATOR)
        return ParsedTurn(thought, content)
    wrong_stop = text.endswith(END_OF_TEXT)
    body = text.removesuffix(END_OF_TEXT if wrong_stop else END)
    if body.count(SEPARATOR) != 1:
        return ParsedTurn(body, ill_formed="the thought is not closed exactly once")
    thought, rest = body.split(SEPARATOR)
    content, calls, bodies, reason = _scan(rest, tools)
    if reason is None and not content and not calls:
        reason = "nothing follows the thought"
    if reason is None and not wrong_stop and render_bodies(thought, content, bodies) != text:
        reason = "text around the answer or the calls that does not belong there"
    canonical = reason is None and (wrong_stop or render_turn(thought, content, calls) == text)
    if reason is None and strict and not canonical:
        reason = "a tool call is not written as the template writes it"
    if reason is None and wrong_stop:
        reason = f"the turn stops with {END_OF_TEXT}"
    ends = wrong_stop or not calls
    if reason is not None:
        return ParsedTurn(thought, content, _with_errors(calls, reason), reason, ends=ends)
    return ParsedTurn(thought, content, calls, noncanonical=not canonical, ends=ends)


def _scan(
    text: str, tools: Sequence[Mapping[str, Any]]
) -> tuple[str, tuple[ToolCall, ...], list[str], str | None]:
    """Split what follows the thought into content, complete calls, raw call bodies and the first defect.

    Whatever stands between or after the calls is left out, so that re-rendering shows it.
    """
    schemas = {tool["name"]: tool["parameters"] for tool in tools}
    calls: list[ToolCall] = []
    bodies: list[str] = []
    reason = None
    start = text.find(CALL)
    content = (text if start < 0 else text[:start]).strip("\n")
    while start >= 0:
        start += len(CALL)
        call, end, defect = _read_call(text, start, schemas)
        reason = reason or defect
        if call is None:
            break
        if len(calls) == MAX_CALLS:
            reason = reason or f"more than {MAX_CALLS} tool calls"
            break
        calls.append(call)
        bodies.append(text[start:end])
        start = text.find(CALL, end + len(END_CALL))
    return content, tuple(calls), bodies, reason


def _read_call(
    text: str, start: int, schemas: Mapping[str, Mapping]
) -> tuple[ToolCall | None, int, str | None]:
    """Read the call whose body begins at `start`: (call, end of the body, defect).

    The JSON is scanned, not searched for the closing tag, so a string may contain that tag.  An unreadable body
    ends at the next closing tag; without one the call is None.
    """
    name, arguments, defect = "", {}, None
    try:
        value, end = _DECODER.raw_decode(text, _SPACE.match(text, start).end())
        end = _SPACE.match(text, end).end()
        if not text.startswith(END_CALL, end):
            raise ValueError("text after the JSON object")
        _check_storable(value)
        name, arguments, defect = _check_call(value, schemas)
    except (ValueError, RecursionError) as error:
        defect = f"a tool call is not valid JSON: {error}"
        end = text.find(END_CALL, start)
        if end < 0:
            return None, len(text), "a tool call is not closed"
    call = ToolCall(name, arguments)
    return (call if defect is None else _with_errors((call,), defect)[0]), end, defect


def _check_call(value: Any, schemas: Mapping[str, Mapping]) -> tuple[str, dict, str | None]:
    """Name, arguments and the first defect of a decoded call; argument types are the tool's business."""
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        return "", {}, "a tool call must be an object with name and arguments"
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return "", {}, "name must be a string and arguments an object"
    if name not in schemas:
        return name, arguments, f"unknown tool {name[:60]!r}"
    schema = schemas[name]
    for key in arguments:
        if key not in schema["properties"]:
            return name, arguments, f"{name} has no argument {key[:60]!r}"
    for key in schema.get("required", ()):
        if key not in arguments:
            return name, arguments, f"{name} needs the argument {key!r}"
    return name, arguments, None


def _with_errors(calls: Sequence[ToolCall], reason: str) -> tuple[ToolCall, ...]:
    """Give the calls that have no error yet this one, unless the turn's defect already sits on another call."""
    if any(call.result for call in calls):
        return tuple(calls)
    error = ToolResult(f"Error: {reason}. Please check the format of the call.", error="bad_call")
    return tuple(replace(call, result=error) for call in calls)


# ---------------------------------------------------------------------------------------------- strict JSON


def _check_storable(value: Any) -> None:
    """Raise ValueError for what breaks a writer later and json lets in: deep nesting, lone surrogates."""
    _check_depth(value, MAX_DEPTH)
    json.dumps(value, ensure_ascii=False).encode()


def _check_depth(value: Any, levels: int) -> None:
    if levels == 0:
        raise ValueError("nested too deeply")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, levels - 1)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate key")
    return result


def _finite(text: str) -> float:
    number = float(_short(text))
    if not math.isfinite(number):
        raise ValueError("number out of range")
    return number


def _short(text: str) -> str:
    """Converting a long number takes more than linear time; nobody needs one."""
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError("number too long")
    return text


def _reject(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_no_duplicates,
    parse_float=_finite,
    parse_int=lambda text: int(_short(text)),
    parse_constant=_reject,
)
