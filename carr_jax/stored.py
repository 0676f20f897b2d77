"""Records as plain JSON values and back, what files are made of; and the checksum that tells a changed file."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from carr_jax.records import (
    End,
    Question,
    Rubric,
    RubricScore,
    Score,
    Seen,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
)


def to_json(value: Any) -> Any:
    """Records, enums and arrays to plain JSON values; inverses are the `..._from_json` below.

    Fields marked as not stored (`Trajectory.routes`) are left out.  JSON knows no NaN and no infinity: a number
    that is not finite becomes null.
    """
    if dataclasses.is_dataclass(value):
        stored = (f.name for f in dataclasses.fields(value) if f.metadata.get("stored", True))
        return {name: to_json(getattr(value, name)) for name in stored}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, np.ndarray) and (value.dtype.kind != "f" or np.isfinite(value).all()):
        return value.tolist()  # quick: trajectories are long
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist())
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def question_from_json(row: Mapping[str, Any]) -> Question:
    """Inverse of `to_json(question)`.  Raises KeyError or TypeError on a row of another shape."""
    row = dict(row)
    row["rubrics"] = tuple(
        Rubric(r["text"], tuple(r.get("support_urls", ())), r.get("relation", "fact"))
        for r in row.get("rubrics", ())
    )
    row["entities"] = {k: tuple(v) for k, v in row.get("entities", {}).items()}
    for key in ("answer_aliases", "gold_urls"):
        row[key] = tuple(row.get(key, ()))
    return Question(**row)


def trajectory_from_json(row: Mapping[str, Any]) -> Trajectory:
    """Inverse of `to_json(trajectory)`, up to `routes`; a log-prob of null is NaN again."""
    row = dict(row)
    dtypes = {"ids": np.int32, "mask": np.int8, "logprobs": np.float32, "versions": np.int32}
    arrays = {key: np.asarray(row[key], dtype) for key, dtype in dtypes.items()}
    return Trajectory(**{**row, **arrays, "turns": tuple(map(_turn, row["turns"])), "end": End(row["end"])})


def _turn(row: Mapping[str, Any]) -> Turn:
    return Turn(**{**row, "calls": tuple(map(_call, row["calls"]))})


def _call(row: Mapping[str, Any]) -> ToolCall:
    result = row["result"]
    if result is not None:
        result = tool_result_from_json(result)
    return ToolCall(row["name"], row["arguments"], result)


def tool_result_from_json(row: Mapping[str, Any]) -> ToolResult:
    """Inverse of `to_json(result)`.  Raises KeyError or TypeError on a row of another shape."""
    seen = tuple(Seen(**s) for s in row["seen"])
    return ToolResult(row["output"], seen, row["error"], row.get("reason", ""))


def score_from_json(row: Mapping[str, Any]) -> Score:
    """Inverse of `to_json(score)`; sequences inside `Verdict.parsed` come back as lists."""
    rubric_scores = tuple(RubricScore(**r) for r in row["rubric_scores"])
    verdicts = tuple(map(_verdict, row["verdicts"]))
    return Score(**{**row, "rubric_scores": rubric_scores, "verdicts": verdicts})


def _verdict(row: Mapping[str, Any]) -> Verdict:
    return Verdict(**{**row, "evidence": tuple(map(tuple, row.get("evidence", ())))})


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
