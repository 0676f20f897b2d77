"""What one step's rollouts say in numbers, and the file that keeps them.

Two rules hold for every number.  A trajectory whose score is unknown enters no reward mean, only
`reward/unknown_rate`.  A mean or share over nothing is left out of the row (never NaN, never a made-up 0);
a sum over nothing is 0.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from carr_jax.observe.files import atomic_file
from carr_jax.records import End, Group, Score, Trajectory


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The `reward/*`, `carr/*`, `agent/*` and `judge/*` values of one step's groups (DESIGN section 4)."""
    trajectories = [t for group in groups for t in group.trajectories]
    scores = [s for group in groups for s in group.scores]
    return {
        **_reward_metrics(groups, scores),
        **_carr_metrics(groups),
        **_agent_metrics(trajectories),
        **_tool_reasons(trajectories),
        **_missing_logprobs(trajectories),
        **_judge_metrics(scores),
    }


def _means(prefix: str, values: Mapping[str, Iterable[float]]) -> dict[str, float]:
    """The mean of each non-empty list, under `prefix/name`."""
    lists = {f"{prefix}/{name}": list(numbers) for name, numbers in values.items()}
    return {name: float(np.mean(numbers)) for name, numbers in lists.items() if numbers}


def _reward_metrics(groups: Sequence[Group], scores: Sequence[Score]) -> dict[str, float]:
    """Means over known samples; `dropped_groups` are those with fewer than two known rewards."""
    known = [s for s in scores if s.known]
    rewards = [group.rewards[np.isfinite(group.rewards)] for group in groups]
    compared = [r for r in rewards if len(r) >= 2]
    return _means(
        "reward",
        {
            "mixed": (float(x) for r in rewards for x in r),
            "outcome": (s.outcome for s in known),
            "rubric": (s.rubric for s in known if s.rubric is not None),
            "unknown_rate": (not s.known for s in scores),
            "zero_spread_groups": (r.max() == r.min() for r in compared),
            "dropped_groups": (len(r) < 2 for r in rewards),
        },
    )


def _carr_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Counts per finished trajectory with a known score (the paper's Table 2).

    Where all rubric calls were skipped (`score.rubric is None`) the counts are not known, so those trajectories
    enter only `citations` and `judged`, the share of finished trajectories whose rubrics were looked at.
    """
    finished = [
        (group.question, score)
        for group in groups
        for trajectory, score in zip(group.trajectories, group.scores, strict=True)
        if trajectory.end is End.ANSWERED and score.known
    ]
    judged = [(question, score) for question, score in finished if score.rubric is not None]
    return _means(
        "carr",
        {
            "identified": (sum(r.identified for r in s.rubric_scores) for _, s in judged),
            "supported": (sum(r.supported for r in s.rubric_scores) for _, s in judged),
            "connected": (sum(r.connected for r in s.rubric_scores) for _, s in judged),
            "rubrics": (len(question.rubrics) for question, _ in judged),
            "citations": (s.citations for _, s in finished),
            "judged": (s.rubric is not None for _, s in finished),
        },
    )


def _agent_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Mean sizes, and the share of each way to end; the seven shares add up to 1."""
    ends = [t.end for t in trajectories]
    return _means(
        "agent",
        {
            "tool_calls": (len(t.calls) for t in trajectories),
            "turns": (len(t.turns) for t in trajectories),
            "tokens": (len(t.ids) for t in trajectories),
            "generated_tokens": (t.generated_tokens for t in trajectories),
            "finished": (end is End.ANSWERED for end in ends),
            "format_error": (end is End.FORMAT_ERROR for end in ends),
            "over_length": (end.over_length for end in ends),
            "tool_error": (end is End.TOOL_ERROR for end in ends),
            "engine_error": (end is End.ENGINE_ERROR for end in ends),
            "deadline": (end is End.DEADLINE for end in ends),
        },
    )


def _tool_reasons(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How many tool calls of the step failed for each reason, such as `tools/timeout`."""
    results = (call.result for t in trajectories for call in t.calls if call.result)
    counts = Counter(result.reason for result in results if result.reason)
    return {f"tools/{reason}": float(count) for reason, count in sorted(counts.items())}


def _missing_logprobs(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Share of the sampled tokens whose log-prob the engine did not give: they cannot be trained on."""
    sampled = sum(t.generated_tokens for t in trajectories)
    missing = sum(np.count_nonzero(~np.isfinite(t.logprobs[t.mask != 0])) for t in trajectories)
    return {"agent/missing_logprobs": missing / sampled} if sampled else {}


def _judge_metrics(scores: Sequence[Score]) -> dict[str, float]:
    """Sums over the step, and the share of replies that could not be used (JP-12).

    `calls`, `tokens` and `cost_usd` are what was really asked and paid: replays from the cache count
    in `cached` alone.
    """
    verdicts = [v for s in scores for v in s.verdicts]
    asked = [v for v in verdicts if not v.cached]
    calls = sum(v.calls for v in asked)
    rates = {"judge/invalid_rate": sum(v.invalid for v in asked) / calls} if calls else {}
    return rates | {
        "judge/calls": float(calls),
        "judge/cached": float(len(verdicts) - len(asked)),
        "judge/skipped": float(sum(s.skipped_calls for s in scores)),
        "judge/from_reasoning": float(sum(v.from_reasoning for v in asked)),
        "judge/tokens": float(sum(v.tokens for v in asked)),
        "judge/cost_usd": float(sum(v.cost_usd for v in asked)),
    }


# ------------------------------------------------------------------------------------------- metrics.jsonl


class MetricsLog:
    """The append-only `metrics.jsonl` of a run: one JSON object per step.

    A line counts once its newline is on disk.  A kill inside a write leaves a last line without one: `read`
    passes over it, and the next `MetricsLog` on that path cuts it off.  With `writes` False nothing is
    changed: of several processes that train together only one keeps the log.
    """

    def __init__(self, path: str | os.PathLike[str], writes: bool = True) -> None:
        self.path = pathlib.Path(path)
        self._writes = writes
        if not writes:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self.path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one step.  `row` must hold "step"; a value that is not finite is written as null."""
        if "step" not in row:
            raise ValueError(f"{self.path}: a metrics row needs the key 'step'")
        if not self._writes:
            return
        line = json.dumps({key: _plain(value) for key, value in row.items()}, allow_nan=False) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            # Unbuffered: one write call, so a kill or a full disk can only tear the end.
            if file.write(line.encode()) != len(line):
                raise OSError(f"{self.path}: only part of step {row['step']} was written; is the disk full?")
            os.fsync(file.fileno())

    @staticmethod
    def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
        """All whole lines.  Raises ValueError, naming the line, when one that ends in a newline is not JSON."""
        lines = pathlib.Path(path).read_bytes().split(b"\n")[:-1]
        return [_parse(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]

    def truncate_after(self, step: int) -> None:
        """Forget the rows of later steps, which a resume from the checkpoint of `step` will make again."""
        if not self._writes:
            return
        rows = self.read(self.path) if self.path.exists() else []
        with atomic_file(self.path) as file:
            file.writelines(json.dumps(row).encode() + b"\n" for row in rows if row["step"] <= step)


def _plain(value: Any) -> int | float | str | None:
    """A JSON scalar; array scalars become floats, and NaN or infinity null, for JSON has neither."""
    if value is None or isinstance(value, int | str):
        return value
    return float(value) if math.isfinite(float(value)) else None


def _parse(line: bytes, path: str | os.PathLike[str], number: int) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"{path} line {number} is not JSON ({error}); repair or delete that line") from error


def _cut_torn_line(path: pathlib.Path) -> None:
    if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
