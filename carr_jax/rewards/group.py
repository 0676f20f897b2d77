"""The rewards of the siblings of one question, and which judge calls are worth making.

Outcomes come first.  What is asked after that depends on the mix: each call that is left out provably cannot
change a mixed reward of the group (DESIGN 2, "compute what is needed").
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import numpy as np

from carr_jax.records import End, Question, Score, Trajectory
from carr_jax.rewards.carr import (
    READERS,
    Named,
    Rubrics,
    identify,
    judge_rubrics,
    judge_support,
    judgeable,
    rubric_calls,
    score_outcome,
    with_rubrics,
)
from carr_jax.rewards.citations import Reading
from carr_jax.rewards.judge import Judge
from carr_jax.rewards.mixing import MODES, OF_MAXIMUM, mix_rewards


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
    """The scores of the G trajectories of one question.

    `score_everything` judges all rubrics anyway, for the metrics; status and mixed rewards are the same either
    way.  `robust_entities` is for E-GRPO, see `entities.entity_match`; `citations` names one of `READERS`.
    Raises ValueError for an unknown mix.
    """
    if mix not in MODES:
        raise ValueError(f"reward mix {mix!r} is not one of {', '.join(MODES)}")
    readings = [READERS[citations](t) for t in trajectories]
    work = _Group(question, judge, mix, score_everything)
    pairs = zip(trajectories, readings, strict=True)
    outcomes = await asyncio.gather(*(score_outcome(question, *p, judge, robust_entities) for p in pairs))
    samples = [_Sample(*row) for row in zip(trajectories, readings, outcomes, strict=True)]
    if mix in OF_MAXIMUM:
        await work.look_for_maximum([s for s in samples if s.live])
    elif mix in ("carr_released", "carr_all_rollouts"):
        every = mix == "carr_all_rollouts"
        await work.judge_all([s for s in samples if s.live and (every or s.right)])
    await asyncio.gather(*(work.leave(s) for s in samples if s.open))
    return [s.score for s in samples]


@dataclasses.dataclass(eq=False)
class _Sample:
    """A trajectory on its way to its score; `named` once it was asked whom it names, and no more."""

    trajectory: Trajectory
    reading: Reading
    score: Score
    named: Named | None = None
    done: bool = False

    @property
    def open(self) -> bool:
        """Whether rubric calls are left to make or to leave out."""
        return judgeable(self.trajectory, self.score) and not self.done

    @property
    def live(self) -> bool:
        """Whether its reward is not decided yet."""
        return self.open and not failed(self.trajectory)

    @property
    def right(self) -> bool:
        return self.score.outcome > 0

    def end(self, found: Rubrics, needed: bool = True) -> None:
        self.score, self.done = with_rubrics(self.score, found, needed=needed), True


@dataclasses.dataclass(frozen=True)
class _Group:
    """What the calls of a group have in common."""

    question: Question
    judge: Judge
    mix: str
    everything: bool

    async def judge_all(self, samples: Sequence[_Sample]) -> None:
        """All rubric calls of these samples, as far as they matter to the sample itself."""
        for sample, found in zip(samples, await asyncio.gather(*map(self._rubrics, samples)), strict=True):
            sample.end(found)

    async def look_for_maximum(self, live: Sequence[_Sample]) -> None:
        """Only right answers earn, by their share of the group's best R_r, which may be a wrong one's (eq. 14).

        So right ones are judged.  A wrong one matters if it can beat the best so far: whom it names bounds its
        R_r from above.  The most promising goes first, then two, then four: few calls, and few rounds.
        """
        await self.judge_all([s for s in live if s.right])
        best = max((s.score.rubric for s in live if s.right and s.score.known), default=None)
        if best is None or best == 1.0:
            return
        wrong = [s for s in live if not s.right]
        await asyncio.gather(*(self._name(sample) for sample in wrong))
        waiting = sorted((s for s in wrong if s.named), key=lambda s: -s.named.most)
        size = 1
        while wave := [s for s in waiting[:size] if s.named.most > best]:
            await self.judge_all(wave)
            best = max(best, *(s.score.rubric for s in wave if s.score.known), 0.0)
            waiting, size = waiting[size:], 2 * size

    async def leave(self, sample: _Sample) -> None:
        """A sample whose rubrics change nothing: left out and counted, or judged for the record alone."""
        if self.everything:
            return sample.end(await self._rubrics(sample), needed=False)
        calls, verdicts = rubric_calls(self.question, self.mix), ()
        if sample.named is not None:
            calls, verdicts = 1, sample.named.verdicts
        reason = "its rubrics cannot change a reward"
        sample.end(Rubrics(None, (), verdicts, calls, reason), needed=False)

    async def _rubrics(self, sample: _Sample) -> Rubrics:
        """R_r of a sample, by the calls that are left to make."""
        if sample.named is None:
            return await judge_rubrics(*self._ask(sample), everything=self.everything)
        question, _, judge, mix = self._ask(sample)
        return await judge_support(question, sample.named, judge, mix, everything=self.everything)

    async def _name(self, sample: _Sample) -> None:
        found = await identify(*self._ask(sample), everything=self.everything)
        if isinstance(found, Named):
            sample.named = found
        else:
            sample.end(found)

    def _ask(self, sample: _Sample) -> tuple[Question, Reading, Judge, str]:
        return self.question, sample.reading, self.judge, self.mix


def failed(trajectory: Trajectory) -> bool:
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
        np.array([failed(t) for t in trajectories], bool),
        alpha,
    )
