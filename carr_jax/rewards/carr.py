"""CaRR: citation-aware rubric rewards (arXiv 2601.06021, section 3), and which judge calls are worth making.

    score_outcome     R_o: is the answer right?
    judge_rubrics     step 1 identification, step 2 support, step 3 connectivity -> R_r = connected / m
    score_group       both for the G trajectories of a question, without calls that cannot change a reward

A verdict that is missing makes a score unknown, never zero; one that could not have mattered changes nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Mapping, Sequence

import numpy as np

from carr_jax.llm.errors import CannotGoOn
from carr_jax.records import End, Question, Rubric, RubricScore, Score, Trajectory, Verdict
from carr_jax.rewards import citations, reference, rubrics
from carr_jax.rewards.citations import Reading
from carr_jax.rewards.entities import entity_match
from carr_jax.rewards.judge import Judge, stated_name
from carr_jax.rewards.mixing import MODES, mix_rewards

# How citations are read: everything that a person would call one, or exactly what the public reference accepts.
READERS = {"tolerant": citations.read, "strict_reference": reference.read}


# ------------------------------------------------------------------------------------------------ pure steps


def support_flags(
    question: Question, names: Mapping[str, str | None] | None, judged: Mapping[int, bool]
) -> tuple[bool, ...]:
    """Step 2 for all rubrics: the judge's flags by index for facts; comparisons are worked out from them.

    A comparison holds when the two named values compare that way and a supported fact speaks of each of them.
    """
    flags = [judged.get(i, False) for i in range(len(question.rubrics))]
    backed = {e for rubric, ok in zip(question.rubrics, flags, strict=True) if ok for e in rubric.entities}
    for i, rubric in enumerate(question.rubrics):
        if rubric.relation != "fact":
            flags[i] = _comparison_supported(question, names, rubric, backed)
    return tuple(flags)


def _comparison_supported(
    question: Question, names: Mapping[str, str | None] | None, rubric: Rubric, backed: set[str]
) -> bool:
    if len(rubric.entities) != 2 or not backed.issuperset(rubric.entities):
        return False
    if names is None:
        values = [next(iter(question.entities.get(e, ())), None) for e in rubric.entities]
    else:
        values = [names.get(e) for e in rubric.entities]
    return all(values) and rubrics.comparison_holds(rubric.relation, *values)


def rubric_scores(
    question: Question, names: Mapping[str, str | None] | None, supported: Sequence[bool]
) -> tuple[RubricScore, ...]:
    """Step 3 and the record of all three; `names` None means that identification is ablated."""
    reached = rubrics.connected([rubric.entities for rubric in question.rubrics], supported)
    scores = []
    for rubric, holds, reaches in zip(question.rubrics, supported, reached, strict=True):
        known = names is None or rubrics.identified(rubric, names)
        filled = rubrics.fill(rubric.text, names or {}) if known else None
        scores.append(RubricScore(rubric.text, filled, known, bool(holds), reaches))
    return tuple(scores)


def rubric_reward(scores: Sequence[RubricScore], mix: str = "carr_paper") -> float:
    """R_r = connected / m; supported / m when connectivity is ablated; 0 without rubrics."""
    if not scores:
        return 0.0
    counted = (s.supported if mix == "carr_no_connectivity" else s.connected for s in scores)
    return sum(counted) / len(scores)


def rubrics_matter(mix: str, scores: Sequence[Score], failed: Sequence[bool]) -> list[bool]:
    """For each trajectory: can its R_r change a mixed reward of the group?  `scores` hold the outcomes only.

    carr_paper divides by the maximum over wrong answers too, but when nobody is right every reward is 0.
    """
    live = [score.known and not f for score, f in zip(scores, failed, strict=True)]
    right = [ok and score.outcome > 0 for ok, score in zip(live, scores, strict=True)]
    if mix in ("grpo", "e_grpo"):
        return [False] * len(live)
    if mix == "carr_released":
        return right
    return live if mix == "carr_all_rollouts" or any(right) else [False] * len(live)


# -------------------------------------------------------------------------------------------------- judging


async def ask(step: str, call: Awaitable[Verdict]) -> Verdict:
    """The verdict of a judge call; whatever goes wrong is a verdict "unknown" with the reason as raw text.

    Raises CannotGoOn, such as a budget that is spent: unknown would be every verdict after that.
    """
    try:
        verdict = await call
    except CannotGoOn:
        raise
    except Exception as error:  # a judge is a foreign service: no failure of it may end a run
        return Verdict(step, "unknown", None, raw=f"{type(error).__name__}: {error}")
    if not isinstance(verdict, Verdict):
        return Verdict(step, "unknown", None, raw=f"not a verdict: {verdict!r:.200}")
    return verdict


def valid_names(verdict: Verdict, ids: Sequence[str]) -> dict[str, str | None] | None:
    """The name of each entity by an identify verdict, or None when it is unusable.

    Numbers are taken as text, and the words for nobody as no name (RC-06).
    """
    parsed = verdict.parsed
    if verdict.status != "ok" or not isinstance(parsed, Mapping) or not parsed.keys() >= set(ids):
        return None
    try:
        return {entity: stated_name(parsed[entity]) for entity in ids}
    except ValueError:
        return None


def valid_flags(verdict: Verdict, indices: Sequence[int]) -> dict[int, bool] | None:
    """The support flag of each asked rubric by a support verdict, or None when it is unusable."""
    parsed = verdict.parsed
    usable = verdict.status == "ok" and isinstance(parsed, Sequence) and len(parsed) == len(indices)
    if not usable or not all(isinstance(flag, bool | np.bool_) for flag in parsed):
        return None
    return {i: bool(flag) for i, flag in zip(indices, parsed, strict=True)}


async def score_outcome(
    question: Question, trajectory: Trajectory, reading: Reading, judge: Judge, robust_entities: bool = False
) -> Score:
    """R_o, the entity match and the number of cited pages; rubrics are left for later (`rubric` is None).

    A format error and the over-length ends are known zeros without a call; a failure of the infrastructure, or
    of the judge, is unknown.
    """
    if trajectory.end.infrastructure:
        return Score("unknown", reason=f"episode ended by {trajectory.end.value}")
    if trajectory.end is not End.ANSWERED:
        return Score("ok", reason=trajectory.end.value)
    verdict, pages = await asyncio.gather(
        ask("outcome", judge.outcome(question, reading.answer)), _pages_meanwhile(reading)
    )
    score = Score(
        "ok",
        entity_match=entity_match(question, trajectory.thoughts, robust=robust_entities),
        citations=len(pages),
        verdicts=(verdict,),
    )
    if verdict.status != "ok" or not isinstance(verdict.parsed, bool | np.bool_):
        return dataclasses.replace(score, status="unknown", reason=_why("outcome", verdict))
    return dataclasses.replace(score, outcome=float(verdict.parsed))


async def _pages_meanwhile(reading: Reading) -> Mapping[str, str]:
    """The cited pages, looked for once the judges of all trajectories are at work."""
    await asyncio.sleep(0)
    return reading.pages


@dataclasses.dataclass(frozen=True)
class Rubrics:
    """What the rubric calls of one trajectory gave; `reward` is R_r, or None when a verdict is missing."""

    reward: float | None
    scores: tuple[RubricScore, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    skipped_calls: int = 0
    reason: str = ""


async def judge_rubrics(
    question: Question, reading: Reading, judge: Judge, mix: str = "carr_paper", *, everything: bool = False
) -> Rubrics:
    """R_r of an answered trajectory.

    Calls are skipped (unless `everything`) once R_r is sure to be 0: no cited page was seen, no rubric is
    identified, or E0 is not.  A verdict that is missing after that point leaves R_r at 0.
    """
    pages = reading.pages
    if not question.rubrics:
        return Rubrics(0.0, reason="no rubrics")
    if not pages and not everything:
        skipped = 1 if mix == "carr_no_identification" else 2
        return Rubrics(0.0, _nothing(question), skipped_calls=skipped, reason="no cited page was seen")
    names, verdicts = None, ()
    if mix != "carr_no_identification":
        verdict = await ask("identify", judge.identify(question, reading.stated))
        verdicts = (verdict,)
        names = valid_names(verdict, rubrics.entity_ids(question.rubrics))
        if names is None:
            return Rubrics(0.0 if not pages else None, (), verdicts, reason=_why("identify", verdict))
    return await _judge_support(question, names, pages, judge, mix, verdicts, everything)


async def _judge_support(
    question: Question,
    names: Mapping[str, str | None] | None,
    pages: Mapping[str, str],
    judge: Judge,
    mix: str,
    verdicts: tuple[Verdict, ...],
    everything: bool,
) -> Rubrics:
    """Steps 2 and 3, after identification gave `names` (None: ablated)."""
    indices = [
        i
        for i, rubric in enumerate(question.rubrics)
        if rubric.relation == "fact" and (names is None or rubrics.identified(rubric, names))
    ]
    unreachable = names is not None and mix != "carr_no_connectivity" and not names.get(rubrics.ANSWER)
    if not pages or not indices or (unreachable and not everything):
        scores = rubric_scores(question, names, [False] * len(question.rubrics))
        return Rubrics(0.0, scores, verdicts, skipped_calls=1, reason=_hopeless_reason(pages, indices))
    verdict = await ask("support", judge.support(question, names, indices, pages))
    flags = valid_flags(verdict, indices)
    if flags is None:
        return Rubrics(0.0 if unreachable else None, (), (*verdicts, verdict), reason=_why("support", verdict))
    scores = rubric_scores(question, names, support_flags(question, names, flags))
    return Rubrics(rubric_reward(scores, mix), scores, (*verdicts, verdict))


def _hopeless_reason(pages: Mapping[str, str], indices: Sequence[int]) -> str:
    if not pages:
        return "no cited page was seen"
    return "the answer entity E0 is not named" if indices else "no rubric is identified"


def _nothing(question: Question) -> tuple[RubricScore, ...]:
    return tuple(RubricScore(rubric.text, None, False, False, False) for rubric in question.rubrics)


def _why(step: str, verdict: Verdict) -> str:
    """One line on why a verdict is unusable."""
    return f"{step}: {' '.join(verdict.raw.split())[:300] or f'unusable verdict {verdict.parsed!r:.200}'}"


# -------------------------------------------------------------------------------------------------- scoring


async def add_rubrics(
    question: Question,
    trajectory: Trajectory,
    reading: Reading,
    score: Score,
    judge: Judge,
    mix: str,
    *,
    needed: bool,
    everything: bool = False,
) -> Score:
    """`score` with its rubric part.

    `needed`: a missing verdict makes the score unknown.  Not needed: the calls are skipped and `rubric` stays
    None, or with `everything` made for the record alone.
    """
    if not score.known or trajectory.end is not End.ANSWERED:
        return score
    if not needed and not everything:
        calls = 0 if not question.rubrics else 1 if mix == "carr_no_identification" else 2
        return dataclasses.replace(score, skipped_calls=calls)
    found = await judge_rubrics(question, reading, judge, mix, everything=everything)
    return dataclasses.replace(
        score,
        status="unknown" if needed and found.reward is None else "ok",
        rubric=found.reward,
        rubric_scores=found.scores,
        verdicts=(*score.verdicts, *found.verdicts),
        skipped_calls=found.skipped_calls,
        reason=found.reason,
    )


async def score_trajectory(
    question: Question,
    trajectory: Trajectory,
    judge: Judge,
    mix: str = "carr_paper",
    *,
    everything: bool = True,
    citations: str = "tolerant",
) -> Score:
    """The score of one trajectory on its own, with nothing skipped for the sake of a group."""
    reading = READERS[citations](trajectory)
    score = await score_outcome(question, trajectory, reading, judge)
    return await add_rubrics(
        question, trajectory, reading, score, judge, mix, needed=True, everything=everything
    )


async def score_group(
    question: Question,
    trajectories: Sequence[Trajectory],
    judge: Judge,
    mix: str,
    *,
    score_everything: bool = False,
    robust_entities: bool = False,
    citations: str = "tolerant",
) -> list[Score]:
    """The scores of the G trajectories of one question: outcomes first, then the rubric calls that can matter.

    `score_everything` judges all rubrics anyway, for the metrics; the mixed rewards are the same either way.
    `robust_entities` is for E-GRPO, see `entities.entity_match`; `citations` names one of `READERS`.
    Raises ValueError for an unknown mix.
    """
    if mix not in MODES:
        raise ValueError(f"reward mix {mix!r} is not one of {', '.join(MODES)}")
    read = [(t, READERS[citations](t)) for t in trajectories]
    outcomes = await asyncio.gather(*(score_outcome(question, *pair, judge, robust_entities) for pair in read))
    failed = [_failed(t) for t in trajectories]
    needed = rubrics_matter(mix, outcomes, failed)
    rows = zip(read, outcomes, needed, strict=True)
    return list(
        await asyncio.gather(
            *(
                add_rubrics(question, *pair, score, judge, mix, needed=need, everything=score_everything)
                for pair, score, need in rows
            )
        )
    )


def _failed(trajectory: Trajectory) -> bool:
    """Reward 0 whatever was written: a format error or an over-length end."""
    return trajectory.end is End.FORMAT_ERROR or trajectory.end.over_length


def group_rewards(
    mode: str, trajectories: Sequence[Trajectory], scores: Sequence[Score], alpha: float = 0.3
) -> np.ndarray:
    """The mixed rewards float64 [G] of scored trajectories; see `mixing.mix_rewards`."""
    return mix_rewards(
        mode,
        np.array([score.outcome for score in scores], np.float64),
        np.array([np.nan if score.rubric is None else score.rubric for score in scores], np.float64),
        np.array([score.entity_match for score in scores], np.float64),
        np.array([score.known for score in scores], bool),
        np.array([_failed(t) for t in trajectories], bool),
        alpha,
    )
