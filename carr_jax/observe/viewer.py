"""Single trajectories: the file that keeps every token of a step, and a text a person can read."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from carr_jax.observe.files import atomic_file
from carr_jax.records import (
    Group,
    Question,
    RubricScore,
    Score,
    ToolCall,
    Trajectory,
    Turn,
)
from carr_jax.stored import question_from_json, score_from_json, to_json, trajectory_from_json

# Control characters could rewrite a terminal, bidi overrides disguise text, and lone surrogates cannot be
# encoded; none of them helps a reader.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


# ------------------------------------------------------------------------------------------------ the store


def write_trajectories(path: str | os.PathLike[str], groups: Sequence[Group]) -> None:
    """Write one JSON line per trajectory, gzip-compressed; the same groups always give the same bytes."""
    with (
        atomic_file(path) as file,
        # No file name and no time in the header: two equal runs must compare equal.
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
    ):
        for index, group in enumerate(groups):
            for row in _rows(index, group):
                packed.write(json.dumps(row).encode() + b"\n")


def read_trajectories(path: str | os.PathLike[str]) -> Iterator[Group]:
    """The groups of one step, one after the other (a step of long trajectories is large).

    Raises ValueError, naming file and line, for a line that is not a trajectory.
    """
    with gzip.open(path, "rb") as file:
        rows = (_parse(line, path, number) for number, line in enumerate(file, 1))
        for _, members in itertools.groupby(rows, key=lambda row: row["group"]):
            yield _group(list(members))


def _rows(index: int, group: Group) -> Iterator[dict[str, Any]]:
    question = to_json(group.question)
    samples = zip(group.trajectories, group.scores, group.rewards, group.advantages, group.trained, strict=True)
    for trajectory, score, reward, advantage, trained in samples:
        yield {
            "group": index,
            "question": question,
            "trajectory": to_json(trajectory),
            "score": to_json(score),
            "reward": _number_or_none(reward),
            "advantage": _number_or_none(advantage),
            "trained": bool(trained),
        }


def _number_or_none(value: float) -> float | None:
    """JSON has no NaN: an unknown reward is null in the file."""
    return float(value) if math.isfinite(value) else None


def _parse(line: bytes, path: str | os.PathLike[str], number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
        row["group"] = int(row["group"])
        row["question"] = question_from_json(row["question"])
        row["trajectory"] = trajectory_from_json(row["trajectory"])
        row["score"] = score_from_json(row["score"])
        return row
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} line {number} is not a stored trajectory: {error!r}") from error


def _group(rows: Sequence[Mapping[str, Any]]) -> Group:
    return Group(
        question=rows[0]["question"],
        trajectories=tuple(row["trajectory"] for row in rows),
        scores=tuple(row["score"] for row in rows),
        # float64 turns null back into NaN
        rewards=np.array([row["reward"] for row in rows], np.float64),
        advantages=np.array([row["advantage"] for row in rows], np.float64),
        trained=np.array([row["trained"] for row in rows], bool),
    )


# ------------------------------------------------------------------------------------------- readable text


def trajectory_to_text(
    question: Question,
    trajectory: Trajectory,
    score: Score,
    reward: float,
    advantage: float,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> str:
    """One trajectory as Markdown that also reads well as plain text.

    Everything the policy or the web wrote stands indented or quoted, so it cannot pose as a heading.  `decode`
    (ids to text) is used for ill-formed turns alone, whose parsed parts do not show what went wrong.
    """
    parts = [
        f"# {clean(question.id)}, sample {trajectory.sample}",
        f"{describe_end(trajectory, score)}; reward {number(reward)}, advantage {number(advantage, sign=True)}",
        f"## Question\n\n{_quote(question.question)}",
        f"Gold answer: {one_line(', '.join(question.answers))}",
        *(_turn_text(index, turn, trajectory, decode) for index, turn in enumerate(trajectory.turns, 1)),
        f"## Rubrics\n\n{_rubric_table(score)}",
    ]
    return "\n\n".join(parts) + "\n"


def _turn_text(
    index: int, turn: Turn, trajectory: Trajectory, decode: Callable[[Sequence[int]], str] | None
) -> str:
    parts = [f"## Turn {index} ({turn.end - turn.start} tokens)"]
    if turn.ill_formed:
        parts.append(f"Ill-formed: {one_line(turn.ill_formed)}")
        if decode:
            parts.append(_block(decode(trajectory.ids[turn.start : turn.end].tolist())))
            return "\n\n".join(parts)
    if turn.thought.strip():
        parts.append(f"Thought\n\n{_quote(turn.thought)}")
    for call in turn.calls:
        parts.append(_call_text(call))
    if turn.content.strip():
        parts.append(f"{'Text' if turn.calls else 'Answer'}\n\n{_block(turn.content)}")
    return "\n\n".join(parts)


def _call_text(call: ToolCall) -> str:
    head = f"Call\n\n{_block(call_line(call))}\n\nObservation"
    if call.result is None:
        return f"{head}: not executed"
    error = f" (error: {one_line(call.result.error)})" if call.result.error else ""
    return f"{head}{error}\n\n{_block(shorten(call.result.output, 600))}"


def _rubric_table(score: Score) -> str:
    if not score.known:
        return f"Unknown: {one_line(score.reason) or 'the judge gave no verdict'}"
    if not score.rubric_scores:
        return "Not judged: no rubric call could change this reward."
    rows = [f"| {rubric_state(r)} | {_cell(r.filled or r.rubric)} |" for r in score.rubric_scores]
    return "\n".join(["| state | rubric |", "| --- | --- |", *rows])


def rubric_state(score: RubricScore) -> str:
    """How far a rubric came: the last of the three steps that it passed, or "not identified"."""
    if score.connected:
        return "connected"
    if score.supported:
        return "supported"
    return "identified" if score.identified else "not identified"


def describe_end(trajectory: Trajectory, score: Score) -> str:
    """The end reason, and for an answer what the judge said of it: "answered, right"."""
    end = trajectory.end.value.replace("_", " ")
    if not score.known:
        return f"{end}, score unknown"
    return end if trajectory.response is None else f"{end}, {'right' if score.outcome > 0 else 'wrong'}"


def call_line(call: ToolCall) -> str:
    """`search(query="...", num=5)`"""
    arguments = ", ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in call.arguments.items())
    return clean(f"{call.name}({arguments})")


def number(value: float | None, sign: bool = False) -> str:
    """Three decimals at most, or "unknown" for NaN and None."""
    if value is None or not math.isfinite(value):
        return "unknown"
    value = round(value, 3) + 0.0  # adding 0.0 turns -0.0 into 0.0
    text = f"{value:+.3f}" if sign and value else f"{value:.3f}"
    return text.rstrip("0").rstrip(".")


def clean(text: str) -> str:
    """Untrusted text without the characters that act on a terminal or cannot be encoded."""
    return UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    return " ".join(clean(text).split())


def shorten(text: str, limit: int) -> str:
    """The first `limit` characters, and how many more there are."""
    if len(text) <= limit:
        return text
    return f"{text[:limit].rstrip()} \N{HORIZONTAL ELLIPSIS} ({len(text) - limit:,} more characters)"


def _quote(text: str) -> str:
    return textwrap.indent(clean(text).strip(), "> ", lambda line: True)


def _block(text: str) -> str:
    return textwrap.indent(clean(text).strip(), "    ", lambda line: True)


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
