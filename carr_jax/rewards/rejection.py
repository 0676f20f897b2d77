"""Rejection sampling: which attempts at a question are worth learning from, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carr_jax.records import End, Score, Trajectory


@dataclass(frozen=True)
class Bar:
    """What a trace must reach: its outcome R_o, and its rubric reward R_r.  0 asks for nothing."""

    outcome: float = 1.0
    rubric: float = 1.0


def defects(trajectory: Trajectory, score: Score, bar: Bar) -> tuple[str, ...]:
    """Why a trajectory with a known score is not kept, each in a few words; () when it is.

    Whatever it earned, what breaks the turn grammar or a budget of the episode teaches just that.  Raises
    ValueError for an unknown score: it is neither a reject nor a trace.
    """
    if not score.known:
        raise ValueError(f"the score of question {trajectory.question_id} is unknown: {score.reason}")
    if trajectory.end is not End.ANSWERED:
        return (trajectory.end.value.replace("_", " "),)
    found = []
    if any(turn.ill_formed for turn in trajectory.turns):
        found.append("ill-formed turn")
    if score.outcome < bar.outcome:
        found.append("outcome too low")
    elif (score.rubric or 0.0) < bar.rubric:
        found.append("rubric reward too low")
    return tuple(found)


def best_first(attempts: Sequence[tuple[Trajectory, Score]]) -> list[int]:
    """Indices of a question's attempts: right before wrong, then by R_r, then the shorter, then the earlier."""

    def rank(index: int) -> tuple:
        trajectory, score = attempts[index]
        return -score.outcome, -(score.rubric or 0.0), len(trajectory.ids), trajectory.sample

    return sorted(range(len(attempts)), key=rank)
