"""CaRR: citation-aware rubric rewards (arXiv 2601.06021, section 3) of one trajectory.

    score_outcome     R_o: is the answer right?
    identify          step 1: whom does the response name?
    judge_support     step 2 support and step 3 connectivity -> R_r = connected / m

`group.py` does this for the siblings of a question, without calls that cannot change a reward.  A verdict that
is missing makes a score unknown, never zero; one that could not have mattered changes nothing.
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


def rubric_reward(question: Question, supported: Sequence[bool], mix: str = "carr_paper") -> float:
    """R_r = connected / m, or what an ablation of step 3 puts in its place; 0 without rubrics.

    Whatever the mix, one more supported rubric never lowers it: `most_possible` rests on that.
    """
    if not question.rubrics:
        return 0.0
    entities = [rubric.entities for rubric in question.rubrics]
    if mix == "carr_no_connectivity":
        return sum(supported) / len(entities)
    if mix == "carr_component_size":
        return sum(rubrics.component_credits(entities, supported)) / len(entities)
    if mix == "carr_depth_weighted":
        full = sum(rubrics.depth_credits(entities, [True] * len(entities)))
        return sum(rubrics.depth_credits(entities, supported)) / full if full else 0.0
    return sum(rubrics.connected(entities, supported)) / len(entities)


def most_possible(
    question: Question,
    names: Mapping[str, str | None] | None,
    indices: Sequence[int],
    pages: Mapping[str, str],
    mix: str,
) -> float:
    """R_r if the pages supported every statement of `indices`: no verdict can give more."""
    if not pages:
        return 0.0
    flags = support_flags(question, names, dict.fromkeys(indices, True))
    return rubric_reward(question, flags, mix)


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
    of the judge, is unknown.  Without a gold answer R_o is 0 and nobody is asked: only rubrics can tell.
    """
    if trajectory.end.infrastructure:
        return Score("unknown", reason=f"episode ended by {trajectory.end.value}")
    if trajectory.end is not End.ANSWERED:
        return Score("ok", reason=trajectory.end.value)
    if not question.answer:
        return Score("ok", citations=len(reading.pages), reason="no gold answer")
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


@dataclasses.dataclass(frozen=True)
class Named:
    """What identification gave: `indices` are the statements to look for in `pages`; R_r is at most `most`.

    `names` is None when identification is ablated.
    """

    names: Mapping[str, str | None] | None
    indices: tuple[int, ...]
    pages: Mapping[str, str]
    verdicts: tuple[Verdict, ...]
    most: float


async def identify(
    question: Question, reading: Reading, judge: Judge, mix: str = "carr_paper", *, everything: bool = False
) -> Named | Rubrics:
    """Step 1 of an answered trajectory, or R_r itself when it needs no more.

    Without a cited page that was seen R_r is 0 and nothing is asked (unless `everything`); with one, names that
    are missing leave it unknown.
    """
    pages = reading.pages
    if not question.rubrics:
        return Rubrics(0.0, reason="no rubrics")
    if not pages and not everything:
        return Rubrics(0.0, _nothing(question), skipped_calls=rubric_calls(question, mix), reason=_NO_PAGE)
    names, verdicts = None, ()
    if mix != "carr_no_identification":
        verdict = await ask("identify", judge.identify(question, reading.stated))
        verdicts = (verdict,)
        names = valid_names(verdict, rubrics.entity_ids(question.rubrics))
        if names is None:
            return Rubrics(0.0 if not pages else None, (), verdicts, reason=_why("identify", verdict))
    indices = tuple(
        i
        for i, rubric in enumerate(question.rubrics)
        if rubric.relation == "fact" and (names is None or rubrics.identified(rubric, names))
    )
    return Named(names, indices, pages, verdicts, most_possible(question, names, indices, pages, mix))


async def judge_support(
    question: Question, named: Named, judge: Judge, mix: str = "carr_paper", *, everything: bool = False
) -> Rubrics:
    """Steps 2 and 3.  When R_r is sure to be 0 nothing is asked (unless `everything`), and a verdict that is
    missing changes nothing."""
    if not named.pages or not named.indices or (not named.most and not everything):
        scores = rubric_scores(question, named.names, [False] * len(question.rubrics))
        return Rubrics(0.0, scores, named.verdicts, skipped_calls=1, reason=_hopeless_reason(named))
    verdict = await ask("support", judge.support(question, named.names, named.indices, named.pages))
    verdicts = (*named.verdicts, verdict)
    flags = valid_flags(verdict, named.indices)
    if flags is None:
        return Rubrics(None if named.most else 0.0, (), verdicts, reason=_why("support", verdict))
    supported = support_flags(question, named.names, flags)
    scores = rubric_scores(question, named.names, supported)
    return Rubrics(rubric_reward(question, supported, mix), scores, verdicts)


async def judge_rubrics(
    question: Question, reading: Reading, judge: Judge, mix: str = "carr_paper", *, everything: bool = False
) -> Rubrics:
    """R_r of an answered trajectory, by all three steps as far as they can matter to it."""
    found = await identify(question, reading, judge, mix, everything=everything)
    if isinstance(found, Rubrics):
        return found
    return await judge_support(question, found, judge, mix, everything=everything)


def rubric_calls(question: Question, mix: str) -> int:
    """How many calls the rubrics of a trajectory take."""
    return 0 if not question.rubrics else 1 if mix == "carr_no_identification" else 2


_NO_PAGE = "no cited page was seen"


def _hopeless_reason(named: Named) -> str:
    if not named.pages:
        return _NO_PAGE
    return "the answer entity E0 is not named" if named.indices else "no rubric is identified"


def _nothing(question: Question) -> tuple[RubricScore, ...]:
    return tuple(RubricScore(rubric.text, None, False, False, False) for rubric in question.rubrics)


def _why(step: str, verdict: Verdict) -> str:
    """One line on why a verdict is unusable."""
    return f"{step}: {' '.join(verdict.raw.split())[:300] or f'unusable verdict {verdict.parsed!r:.200}'}"


# -------------------------------------------------------------------------------------------------- scoring


def with_rubrics(score: Score, found: Rubrics, *, needed: bool = True) -> Score:
    """`score` with its rubric part; a verdict that is missing makes it unknown only when it is `needed`."""
    return dataclasses.replace(
        score,
        status="unknown" if needed and found.reward is None else "ok",
        rubric=found.reward,
        rubric_scores=found.scores,
        verdicts=(*score.verdicts, *found.verdicts),
        skipped_calls=found.skipped_calls,
        reason=found.reason,
    )


def judgeable(trajectory: Trajectory, score: Score) -> bool:
    """Whether there is a response whose rubrics can be looked at."""
    return score.known and trajectory.end is End.ANSWERED


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
    if not judgeable(trajectory, score):
        return score
    return with_rubrics(score, await judge_rubrics(question, reading, judge, mix, everything=everything))
