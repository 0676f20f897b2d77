"""Who acts in a run: the engine that samples, how its weights are renewed, and who scores what it did."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ml_collections import ConfigDict

from carr_jax.agent.chat import Chat
from carr_jax.judging import make_judge
from carr_jax.learner import Learner
from carr_jax.observe.begun import read_begun
from carr_jax.policy import Policy, load_policy, write_policy
from carr_jax.records import Question, Score, Trajectory
from carr_jax.rewards.group import score_group
from carr_jax.rewards.judge import Judge
from carr_jax.rollout.embedded import EmbeddedEngine
from carr_jax.rollout.engine import Engine
from carr_jax.rollout.fleet import PoolOptions
from carr_jax.rollout.pool import SGLangPool
from carr_jax.rollout.scheduler import Rollouts, Scheduler, Scorer, Stream, episode_seed
from carr_jax.rollout.staleness import StalenessGate
from carr_jax.rollout.weight_sync import WeightSync
from carr_jax.run import RunFolder
from carr_jax.search.web import WebTools
from carr_jax.task import Task, question_order, ready

T = TypeVar("T")
TRAINING, EVALUATION = 0, 1  # keep the random streams apart


@dataclass(frozen=True)
class Actor:
    """The acting half of a run.  `sync` is None when the engine lives in this process."""

    engine: Engine
    rollouts: Rollouts
    score: Scorer
    sync: WeightSync | None

    async def publish(self, params: Any, version: int) -> None:
        """All later tokens come from `params`.  Raises WeightUpdateError when servers refuse them."""
        if self.sync is None:
            self.engine.set_params(params, version)
        else:
            await self.sync.publish(self.engine, params, version)

    def forget(self, params: Any, version: int) -> None:
        """Drop what evaluation cached in this process.

        A copied prefix may differ in the last bit from a computed one, and a run that is resumed here has not
        evaluated.
        """
        if self.sync is None:
            self.engine.set_params(params, version)

    def server_metrics(self) -> dict[str, int]:
        """The `rollout/*` values of what the servers went through since the last call; none without servers."""
        return {} if self.sync is None else {f"rollout/{name}": n for name, n in self.engine.news().items()}

    def tool_metrics(self) -> dict[str, float]:
        """The `tools/*` values of the web since the last call; none for tools that call nobody."""
        tools = self.rollouts.tools
        return tools.news() if isinstance(tools, WebTools) else {}

    async def meanwhile(self, work: Callable[..., T], *arguments: Any) -> T:
        """`work(*arguments)`, while episodes go on as far as their engine is elsewhere."""
        if self.sync is None:
            return work(*arguments)
        return await asyncio.to_thread(work, *arguments)


@asynccontextmanager
async def acting(
    config: ConfigDict, policy: Policy, task: Task, learner: Learner, run: RunFolder
) -> AsyncIterator[Actor]:
    """The actor of a run, with the learner's weights; its connections are closed in the end."""
    async with (
        ready(task.tools, run.path),
        make_judge(config, run.path) as judge,
        _engine(config, policy, learner, run) as (engine, sync),
    ):
        yield Actor(engine, make_rollouts(config, policy, task, engine), make_scorer(config, judge), sync)


@asynccontextmanager
async def _engine(
    config: ConfigDict, policy: Policy, learner: Learner, run: RunFolder
) -> AsyncIterator[tuple[Engine, WeightSync | None]]:
    rollout = config.rollout
    if rollout.engine == "embedded":
        yield embedded_engine(config, policy, learner.params, learner.done), None
        return
    sync = weight_sync(config, policy, run)
    folder = await sync.write(learner.params, learner.done)
    async with SGLangPool(rollout.servers, folder, learner.done, patience(config)) as engine:
        yield engine, sync


def patience(config: ConfigDict) -> PoolOptions:
    """How long servers are waited for."""
    rollout = config.rollout
    return PoolOptions(
        request_s=rollout.request_s,
        decode_s=rollout.token_s,
        health_s=rollout.health_s,
        in_flight=rollout.on_update,
    )


@asynccontextmanager
async def fixed_engine(config: ConfigDict) -> AsyncIterator[Engine]:
    """The engine of `config.rollout` with the weights of `config.model.policy`, which stay as they are."""
    if config.rollout.engine == "embedded":
        policy = load_policy(config, [])
        yield embedded_engine(config, policy, policy.params, 0)
        return
    weights = Path(config.model.policy).absolute()
    async with SGLangPool(config.rollout.servers, weights, 0, patience(config)) as pool:
        yield pool


def weight_sync(config: ConfigDict, policy: Policy, run: RunFolder) -> WeightSync:
    """Each version in its folder, in the type that the trainer computes in."""
    rollout = config.rollout

    def export(folder: Path, params: Any) -> None:
        write_policy(folder, dataclasses.replace(policy, params=params), config.model.dtype)

    return WeightSync(Path(rollout.weights_folder or run.path / "weights").absolute(), export, rollout.push)


def embedded_engine(config: ConfigDict, policy: Policy, params: Any, version: int) -> EmbeddedEngine:
    return EmbeddedEngine(
        params,
        policy.model,
        slots=config.rollout.slots,
        max_length=config.agent.context,
        prefill_rows=config.rollout.prefill_rows,
        prefill_chunk=config.rollout.prefill_chunk,
        version=version,
    )


def make_rollouts(config: ConfigDict, policy: Policy, task: Task, engine: Engine) -> Rollouts:
    return Rollouts(
        engine,
        Chat(policy.tokenizer),
        task.tools,
        task.budgets,
        temperature=config.rollout.temperature,
        strict=config.agent.strict,
        forgive=config.agent.forgive,
    )


def make_scorer(config: ConfigDict, judge: Judge) -> Scorer:
    async def score(question: Question, trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        return await score_group(
            question,
            trajectories,
            judge,
            config.reward.mix,
            score_everything=config.reward.score_everything,
            robust_entities=config.reward.entity_names == "robust",
            citations=config.reward.citations,
        )

    return score


def make_scheduler(config: ConfigDict, task: Task, actor: Actor, learner: Learner, run: RunFolder) -> Scheduler:
    """The scheduler of a run, where its newest checkpoint stands."""
    rollout, done = config.rollout, learner.done
    position = learner.extra.get("position", done * rollout.prompts)
    return Scheduler(
        actor.rollouts,
        training_stream(config, task),
        actor.score,
        StalenessGate(rollout.prompts, rollout.staleness, config.train.steps, done),
        position,
        begun=read_begun(run.begun(done)) if learner.extra.get("begun") else (),
        refill=rollout.refill,
        in_flight=rollout.in_flight,
    )


def training_stream(config: ConfigDict, task: Task) -> Stream:
    """The endless shuffled stream of questions; the seed of an episode depends on its place alone."""
    count, prompts = len(task.questions), config.rollout.prompts

    def question(position: int) -> Question:
        return task.questions[question_order(config.seed, position, count)]

    def seed(position: int, sample: int) -> int:
        return episode_seed(config.seed, TRAINING, *divmod(position, prompts), sample)

    return Stream(question, seed, config.rollout.group_size)
