"""What the reward server says and understands, as pure functions from request to reply.

`evaluate` speaks the protocol of the reference's reward server: its keys mean the same; `status`, `reason` and
`usage` are added.  Where a judge failed, `status` is "unknown" and the rewards that hang on it are null.
`evaluate_batch` is the group of one question: outcomes first, and only rubric calls that can change a reward.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from carr_jax.records import End, InputError, Question, Score, Trajectory, Verdict
from carr_jax.rewards import carr, group
from carr_jax.rewards.history import environment_of, from_history
from carr_jax.rewards.judge import Judge
from carr_jax.rewards.mixing import MODES
from carr_jax.rewards.rubrics import entity_ids

Json = dict[str, Any]
T = TypeVar("T")
_SINGLE = ("history", "label", "task_unfinished", "remote_env_info")
_BATCH = ("samples", "label", "remote_env_info")
_SAMPLE = ("history", "task_unfinished")


@dataclass(frozen=True)
class Evaluation:
    """A request to score one trajectory; `ratio` is the weight of the rubric reward."""

    question: Question
    trajectory: Trajectory
    ratio: float


@dataclass(frozen=True)
class Batch:
    """A request to score the trajectories of one question as a group."""

    question: Question
    trajectories: tuple[Trajectory, ...]
    mix: str
    alpha: float


# ---------------------------------------------------------------------------------------------------- requests


def read_evaluation(body: Any) -> Evaluation:
    """Raises InputError for a key that is missing or a value that cannot be used."""
    _require(body, _SINGLE, "the request")
    return _reading(lambda: _evaluation(body))


def read_batch(body: Any) -> Batch:
    """Raises InputError for a key that is missing or a value that cannot be used."""
    _require(body, _BATCH, "the request")
    if not isinstance(body["samples"], list) or not body["samples"]:
        raise InputError("samples must be a list that is not empty")
    for number, sample in enumerate(body["samples"]):
        _require(sample, _SAMPLE, f"samples[{number}]")
    mix = body.get("mix", "carr_paper")
    if mix not in MODES:
        raise InputError(f"mix {mix!r:.80} is not one of {', '.join(MODES)}")
    return _reading(lambda: _batch(body, mix))


def _evaluation(body: Json) -> Evaluation:
    question, trajectory = from_history(body)
    return Evaluation(question, trajectory, _share(environment_of(body), "rubric_reward_ratio", 0.0))


def _batch(body: Json, mix: str) -> Batch:
    shared = {key: body[key] for key in ("label", "remote_env_info")}
    read = [from_history({**shared, **sample}, sample=i) for i, sample in enumerate(body["samples"])]
    return Batch(read[0][0], tuple(trajectory for _, trajectory in read), mix, _share(body, "alpha", 0.3))


def _reading(read: Callable[[], T]) -> T:
    """What `read` gives; what it cannot use is an InputError."""
    try:
        return read()
    except KeyError as error:
        raise InputError(f"the key {error} is missing") from None
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise InputError(str(error)) from None


def _require(body: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(body, Mapping):
        raise InputError(f"{where} must be a JSON object")
    if missing := [key for key in keys if key not in body]:
        raise InputError(f"{where} lacks {', '.join(missing)}")


def _share(row: Mapping[str, Any], key: str, default: float) -> float:
    """A number from 0 to 1; the reference takes null for its default too."""
    value = default if row.get(key) is None else row[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{key} must be a number from 0 to 1, got {value!r:.80}")
    return float(value)


# ----------------------------------------------------------------------------------------------------- replies


async def evaluate(work: Evaluation, judge: Judge, citations: str = "tolerant") -> Json:
    """`reward = (1 - ratio) outcome + ratio rubric`.

    A part without weight is not judged.  What is unfinished, or ends otherwise than with an answer, has zeros.
    """
    question, trajectory = work.question, work.trajectory
    if trajectory.end.infrastructure:
        return _unknown(trajectory.end.value)
    if trajectory.end is not End.ANSWERED:
        return _reply(0.0, 0.0, 0.0, {}, (), 0, trajectory.end.value)
    reading = carr.READERS[citations](trajectory)
    outcome, found = await asyncio.gather(
        carr.score_outcome(question, trajectory, reading, judge) if work.ratio < 1 else _no_weight(Score("ok")),
        carr.judge_rubrics(question, reading, judge) if work.ratio > 0 else _no_weight(carr.Rubrics(0.0)),
    )
    first = outcome.outcome if outcome.known else None
    reward = None if None in (first, found.reward) else (1 - work.ratio) * first + work.ratio * found.reward
    verdicts = (*outcome.verdicts, *found.verdicts)
    reason = " ".join(r for r in (outcome.reason, found.reason) if r)
    shown = rubric_table(question, found)
    return _reply(reward, first, found.reward, shown, verdicts, found.skipped_calls, reason)


async def evaluate_batch(work: Batch, judge: Judge, citations: str = "tolerant") -> Json:
    """The mixed rewards of a group, as training would give them; null for a sample that is unknown."""
    scores = await group.score_group(work.question, work.trajectories, judge, work.mix, citations=citations)
    mixed = group.group_rewards(work.mix, work.trajectories, scores, work.alpha)
    samples = [_sample(work.question, *pair) for pair in zip(scores, mixed.tolist(), strict=True)]
    return {
        "status": "ok" if all(score.known for score in scores) else "unknown",
        "samples": samples,
        "usage": usage([v for s in scores for v in s.verdicts], sum(s.skipped_calls for s in scores)),
    }


async def _no_weight(part: T) -> T:
    return part


def _sample(question: Question, score: Score, reward: float) -> Json:
    found = carr.Rubrics(score.rubric, score.rubric_scores, score.verdicts)
    return _reply(
        None if math.isnan(reward) else reward,
        score.outcome if score.known else None,
        score.rubric,
        rubric_table(question, found),
        score.verdicts,
        score.skipped_calls,
        score.reason,
    )


def _reply(
    reward: float | None,
    outcome: float | None,
    rubric: float | None,
    rubrics: Json,
    verdicts: Iterable[Verdict],
    skipped: int,
    reason: str,
) -> Json:
    return {
        "status": "unknown" if reward is None else "ok",
        "reward": reward,
        "outcome_reward": outcome,
        "rubric_reward": rubric,
        "rubric_scores": rubrics,
        "usage": usage(verdicts, skipped),
        "reason": reason,
    }


def _unknown(reason: str) -> Json:
    return _reply(None, None, None, {}, (), 0, reason)


def timed_out(seconds: float) -> Json:
    """The reply to a request that took too long."""
    return _unknown(f"not judged within {seconds:g} s")


def rubric_table(question: Question, found: carr.Rubrics) -> Json:
    """One entry per rubric, keyed by its index as text, in the reference's words."""
    said = next((v for v in found.verdicts if v.step == "identify"), None)
    names = (carr.valid_names(said, entity_ids(question.rubrics)) if said else None) or {}
    return {
        str(i): {
            "raw_rubric": score.rubric,
            "filled_rubric": score.filled,
            "entity_values": {entity: names.get(entity) for entity in question.rubrics[i].entities},
            "all_entity_identified": score.identified,
            "is_supported": score.supported,
            "connected_to_answer": score.connected,
            "score": int(score.connected),
        }
        for i, score in enumerate(found.scores)
    }


def usage(verdicts: Iterable[Verdict], skipped: int) -> Json:
    """What judging cost: calls made, replayed from a cache, and skipped; tokens and money of the calls."""
    verdicts = list(verdicts)
    return {
        "calls": sum(v.calls for v in verdicts if not v.cached),
        "cached": sum(v.cached for v in verdicts),
        "skipped": skipped,
        "tokens": sum(v.tokens for v in verdicts),
        "cost_usd": sum(v.cost_usd for v in verdicts),
    }
