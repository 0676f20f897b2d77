"""Keeps the episodes of one step in flight and scores each group as soon as its last sibling ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from carr_jax.agent.chat import Chat
from carr_jax.agent.episode import Budgets, Engine, run_episode
from carr_jax.records import Question, Score, Trajectory
from carr_jax.search.corpus import Corpus

Scorer = Callable[[Question, Sequence[Trajectory]], Awaitable[Sequence[Score]]]


@dataclass(frozen=True)
class Rollouts:
    """How episodes are run: who samples, what is searched, how long it may take."""

    engine: Engine
    chat: Chat
    corpus: Corpus
    budgets: Budgets
    temperature: float = 1.0
    strict: bool = False
    forgive: bool = False

    async def episode(self, question: Question, sample: int, seed: int) -> Trajectory:
        return await run_episode(
            question,
            sample=sample,
            engine=self.engine,
            session=self.corpus.session(),
            chat=self.chat,
            budgets=self.budgets,
            seed=seed,
            temperature=self.temperature,
            strict=self.strict,
            forgive=self.forgive,
        )


@dataclass(frozen=True)
class Scored:
    """The siblings of one question with their scores; `reward_s` is the time that scoring took, in seconds."""

    question: Question
    trajectories: tuple[Trajectory, ...]
    scores: tuple[Score, ...]
    reward_s: float


async def run_groups(
    rollouts: Rollouts,
    questions: Sequence[Question],
    group_size: int,
    seed: Sequence[int],
    score: Scorer,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> list[Scored]:
    """Runs `group_size` episodes of each question, all at once; the engine decides how many decode together.

    The result, in the order of `questions`, depends only on (policy, questions, seed): the i-th sibling of the
    q-th question samples with `episode_seed(*seed, q, i)`.  An exception that is not an infrastructure failure
    (those end an episode with a named reason) cancels the rest and is raised.
    """

    async def episode(q: int, question: Question, sample: int) -> Trajectory:
        trajectory = await rollouts.episode(question, sample, episode_seed(*seed, q, sample))
        on_episode(trajectory)
        return trajectory

    async def group(q: int, question: Question) -> Scored:
        trajectories = await asyncio.gather(*(episode(q, question, i) for i in range(group_size)))
        start = time.perf_counter()
        scores = await score(question, trajectories)
        return Scored(question, tuple(trajectories), tuple(scores), time.perf_counter() - start)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(group(q, question)) for q, question in enumerate(questions)]
    return [task.result() for task in running]


def episode_seed(*path: int) -> int:
    """A 31-bit seed for one episode, a pure function of e.g. (run seed, step, question index, sample)."""
    return int(np.random.SeedSequence(path).generate_state(1)[0] >> 1)
