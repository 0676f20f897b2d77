"""Keeps episodes in flight: groups start as the staleness gate admits them, and are scored as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from carr_jax.agent.buffer import Buffer
from carr_jax.agent.chat import Chat
from carr_jax.agent.episode import Budgets, Engine, run_episode
from carr_jax.agent.tools import Tools
from carr_jax.calls.errors import CannotGoOn
from carr_jax.records import Begun, End, Question, Score, Trajectory
from carr_jax.rollout.staleness import StalenessGate

Scorer = Callable[[Question, Sequence[Trajectory]], Awaitable[Sequence[Score]]]


@dataclass(frozen=True)
class Rollouts:
    """How episodes are run: who samples, what is searched, how long it may take."""

    engine: Engine
    chat: Chat
    tools: Tools
    budgets: Budgets
    temperature: float = 1.0
    strict: bool = False
    forgive: bool = False

    def buffer(self, question: Question) -> Buffer:
        """The buffer of an episode that has not begun."""
        return Buffer.of_prompt(self.chat.prompt_ids(question.question))

    async def episode(
        self, question: Question, sample: int, seed: int, buffer: Buffer | None = None
    ) -> Trajectory:
        return await run_episode(
            question,
            sample=sample,
            engine=self.engine,
            session=self.tools.session(question.question),
            chat=self.chat,
            budgets=self.budgets,
            seed=seed,
            temperature=self.temperature,
            strict=self.strict,
            forgive=self.forgive,
            buffer=buffer,
        )


@dataclass(frozen=True)
class Scored:
    """The siblings of one question with their scores; `reward_s` is the time that scoring took, in seconds."""

    question: Question
    trajectories: tuple[Trajectory, ...]
    scores: tuple[Score, ...]
    reward_s: float


@dataclass(frozen=True)
class Stream:
    """The endless stream of groups, pure functions of a group's position."""

    question: Callable[[int], Question]
    seed: Callable[[int, int], int]  # of position and sample
    group_size: int


@dataclass(eq=False)
class _Group:
    """A group in flight: what each sibling has so far, and its score in the end."""

    question: Question
    siblings: list[Buffer | Trajectory]
    scored: Scored | None = None

    def so_far(self) -> tuple[Trajectory, ...]:
        name = self.question.id
        return tuple(
            s if isinstance(s, Trajectory) else s.unfinished(name, i) for i, s in enumerate(self.siblings)
        )


@dataclass(eq=False)
class Scheduler:
    """Plays the groups of a stream and hands out those of one optimiser step after the other.

    `gate` decides what may start and what must be trained next.  `begun` are groups that a checkpoint caught
    unfinished, or finished but unused; `position` is where the stream goes on.  `worth(scored)` says whether a
    group can teach anything: up to `refill` groups of a step that cannot are dropped, and others start instead.
    At most `in_flight` episodes run at a time (0 = as many as the gate admits); the others wait to begin.

    Who samples is the engine's affair: an episode that waits for a tool holds no place there.
    """

    rollouts: Rollouts
    stream: Stream
    score: Scorer
    gate: StalenessGate
    position: int = 0
    begun: Sequence[Begun] = ()
    worth: Callable[[Scored], bool] = lambda scored: True
    refill: int = 0
    in_flight: int = 0
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None
    refilled: int = 0  # groups dropped since the last batch
    _groups: dict[int, _Group] = field(default_factory=dict)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _batch: tuple[int, ...] = ()  # positions that were handed out last

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.in_flight) if self.in_flight else contextlib.nullcontext()

    async def batch(self) -> list[Scored]:
        """The groups of the next step in the order of the stream, as soon as they are there.

        An exception that is not an infrastructure failure (those end an episode with a named reason) is raised.
        """
        self._start()
        while (positions := self.gate.batch()) is None:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            self._settle()
            self._start()
        self._batch = positions
        return [self._groups[p].scored for p in positions]

    def trained(self) -> int:
        """The last batch was trained and the engine has the new weights; returns the batch's staleness."""
        staleness = self.gate.train(self._batch)
        for position in self._batch:
            del self._groups[position]
        self.refilled = 0
        self._start()
        return staleness

    def unfinished(self) -> list[Begun]:
        """All groups that have started and are not trained, as a checkpoint keeps them."""
        started = sorted(self.gate.started.items())
        return [Begun(position, version, self._groups[position].so_far()) for position, version in started]

    async def close(self) -> None:
        """Cancel what is in flight."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # ----------------------------------------------------------------------------------------- groups in flight

    def _start(self) -> None:
        """Start what the gate admits; first of all, what had begun before."""
        for old in self.begun:
            self._play(old.position, [_resumed(t) for t in old.trajectories], old.version)
        self.begun = ()
        while self.gate.may_start():
            question = self.stream.question(self.position)
            self._play(self.position, [self.rollouts.buffer(question) for _ in range(self.stream.group_size)])
            self.position += 1

    def _play(self, position: int, siblings: list[Buffer | Trajectory], version: int | None = None) -> None:
        self.gate.start(position, version)
        group = self._groups[position] = _Group(self.stream.question(position), siblings)
        self._tasks[position] = asyncio.create_task(self._run(position, group))

    async def _run(self, position: int, group: _Group) -> None:
        try:
            async with asyncio.TaskGroup() as episodes:
                for sample, sibling in enumerate(group.siblings):
                    if isinstance(sibling, Buffer):
                        episodes.create_task(self._episode(position, group, sample))
        except* CannotGoOn as failed:  # of a tool; one speaks for all
            raise failed.exceptions[0] from None
        start = time.perf_counter()
        trajectories = tuple(group.siblings)
        scores = tuple(await self.score(group.question, trajectories))
        group.scored = Scored(group.question, trajectories, scores, time.perf_counter() - start)

    async def _episode(self, position: int, group: _Group, sample: int) -> None:
        async with self._places:
            seed = self.stream.seed(position, sample)
            trajectory = await self.rollouts.episode(group.question, sample, seed, group.siblings[sample])
        group.siblings[sample] = trajectory
        self.on_episode(trajectory)

    def _settle(self) -> None:
        """Tell the gate of groups that ended, and drop those that teach nothing while the budget lasts."""
        for position in [p for p, task in self._tasks.items() if task.done()]:
            self._tasks.pop(position).result()
            self.gate.finish(position)
            if self.refilled < self.refill and not self.worth(self._groups[position].scored):
                self.gate.drop(position)
                del self._groups[position]
                self.refilled += 1


def _resumed(trajectory: Trajectory) -> Buffer | Trajectory:
    return Buffer.of_trajectory(trajectory) if trajectory.end is End.UNFINISHED else trajectory


async def run_groups(
    rollouts: Rollouts, questions: Sequence[Question], group_size: int, seed: Sequence[int], score: Scorer
) -> list[Scored]:
    """Runs `group_size` episodes of each question, all at once, in the order of `questions`.

    The i-th sibling of the q-th question samples with `episode_seed(*seed, q, i)`.
    """
    stream = Stream(questions.__getitem__, lambda q, i: episode_seed(*seed, q, i), group_size)
    scheduler = Scheduler(rollouts, stream, score, StalenessGate(len(questions), limit=0, steps=1))
    try:
        return await scheduler.batch()
    finally:
        await scheduler.close()


def episode_seed(*path: int) -> int:
    """A 31-bit seed for one episode, a pure function of e.g. (run seed, step, question index, sample)."""
    return int(np.random.SeedSequence(path).generate_state(1)[0] >> 1)
