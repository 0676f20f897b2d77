"""Reinforcement learning of a search agent: one run, top to bottom.

Each step: questions -> G episodes each -> scores -> mixed rewards -> advantages -> packed batch -> one
optimiser step -> new weights for the engine.  Everything random is a pure function of (seed, step, question,
sample), so a run that was killed goes on from its last checkpoint with the same result, bit for bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from carr_jax.actor import EVALUATION, Actor, acting, make_scheduler, weight_sync
from carr_jax.agreement import check_agreement
from carr_jax.distributed import is_first, share
from carr_jax.judging import how_to_go_on
from carr_jax.learner import Learner
from carr_jax.learning.advantages import OK, group_advantages, over_length_masks
from carr_jax.learning.batch import Example, from_trajectory
from carr_jax.llm.errors import CannotGoOn
from carr_jax.observe.begun import write_begun
from carr_jax.observe.files import atomic_file
from carr_jax.observe.live import LiveView, summary_table
from carr_jax.observe.metrics import MetricsLog, rollout_metrics
from carr_jax.observe.report import write_report
from carr_jax.observe.viewer import read_trajectories, trajectory_to_text, write_trajectories
from carr_jax.policy import Policy, load_policy, write_policy
from carr_jax.records import Begun, Group, InputError, Sampling, TrainBatch, Trajectory
from carr_jax.rewards.group import group_rewards
from carr_jax.rollout.engine import EngineError
from carr_jax.rollout.scheduler import Scheduler, Scored, run_groups
from carr_jax.run import RunFolder, inputs_of
from carr_jax.sanity import warning
from carr_jax.task import Task, load_task


def train(config: ConfigDict, workdir: Path) -> None:
    """Trains the policy that `config` describes; everything a person may want to see lies in `workdir`."""
    # ---------------------------------------------------------------------- what to learn from, who learns
    console = Console()
    run = RunFolder(workdir)
    task = load_task(config, "train")
    policy = load_policy(config, [page.text for page in task.pages])
    if config.model.policy and (said := warning(policy)):
        console.print(f"config.model.policy={config.model.policy}: {said}", style="yellow")
    run.describe(config, policy, inputs_of(task))
    learner = Learner(config, policy, "policy", config.train.steps, run)

    # ---------------------------------------------------------------------- act and learn
    if is_first():
        try:
            asyncio.run(take_steps(config, console, run, task, policy, learner))
        except EngineError as error:  # of one episode it is an end; here no server can be used at all
            raise InputError(f"{error}; the same command resumes from the last checkpoint") from error
        except CannotGoOn as error:
            raise InputError(how_to_go_on(error)) from error
    else:
        follow(config, run, policy, learner)

    # ---------------------------------------------------------------------- what to look at
    write_policy(run.policy, dataclasses.replace(policy, params=learner.params))
    if is_first():
        finish(console, run, policy)


_ASKED = 4  # questions of the comparison of engine and trainer
MISMATCH = (
    "the trainer's log-probs differ from the engine's by {:.3g} on average, more than "
    "config.rollout.mismatch_alarm: are weights, temperature and precision the same on both sides?"
)


async def take_steps(
    config: ConfigDict, console: Console, run: RunFolder, task: Task, policy: Policy, learner: Learner
) -> None:
    """One step after another until `train.steps`."""
    metrics, evaluations = MetricsLog(run.metrics), MetricsLog(run.evaluations)
    for log in (metrics, evaluations):
        log.truncate_after(learner.done)  # rows of steps that a killed run made but did not save
    trajectories = config.rollout.prompts * config.rollout.group_size
    most = -(-trajectories // learner.rows)  # micro-batches of a step, with one trajectory in each row

    async with acting(config, policy, task, learner, run) as actor:
        with LiveView(config.train.steps, learner.done, console) as view:
            if actor.sync is not None:
                view.phase("engine against trainer")
                await refuse_mismatch(config, task, actor, learner, most)
            if learner.done == 0:
                view.phase("held-out questions, before")
                await evaluate(0, config, task, actor, evaluations)
                actor.forget(learner.params, 0)
            scheduler = make_scheduler(config, task, actor, learner, run)
            scheduler.worth = lambda scored: make_group(
                config, scored
            ).advantages.any()  # else nothing to learn
            async with saved_when_stopped(learner, scheduler, run):
                for step in range(learner.done, config.train.steps):
                    clock = Clock()
                    scheduler.on_episode = Counter(view, trajectories)
                    scored = await scheduler.batch()
                    clock.lap("rollout", less=sum(s.reward_s for s in scored))
                    clock.times["reward"] = sum(s.reward_s for s in scored)

                    view.phase("train")
                    groups = [make_group(config, s) for s in scored]
                    batch = learner.pack(trained_examples(groups), most)
                    learned = await actor.meanwhile(learn, learner, batch)
                    clock.lap("train")
                    await actor.publish(learner.params, learner.done)
                    scheduler.trained()
                    clock.lap("sync")

                    if (mismatch := learned["learn/logprob_diff"] or 0.0) > config.rollout.mismatch_alarm:
                        console.print(f"step {learner.done}: {MISMATCH.format(mismatch)}", style="yellow")

                    view.phase("save")
                    row = {"step": learner.done, **clock.metrics(), **rollout_metrics(groups), **learned}
                    row |= version_metrics(groups, version=step) | {"rollout/refilled": scheduler.refilled}
                    row |= actor.server_metrics()
                    metrics.append(row)
                    if due(learner.done, config):
                        write_trajectories(run.trajectories(learner.done), groups)
                    if learner.is_due():
                        await actor.meanwhile(save, learner, scheduler.position, scheduler.unfinished(), run)
                    view.step(row)
            await scheduler.close()
            view.phase("held-out questions, after")
            await evaluate(learner.done, config, task, actor, evaluations)


async def refuse_mismatch(config: ConfigDict, task: Task, actor: Actor, learner: Learner, most: int) -> None:
    """Raises InputError when the engine samples from another policy than the trainer has."""
    prompts = [actor.rollouts.chat.prompt_ids(q.question) for q in task.questions[:_ASKED]]
    room = config.agent.context // 2 - max(map(len, prompts))
    if room < 1:
        raise InputError("config.agent.context has no room for two prompts and answers")
    sampling = Sampling(min(room, 64), actor.rollouts.chat.tokenizer.stop_ids, config.rollout.temperature)

    def ask(examples: list[Example]) -> dict[str, float]:
        return compare(learner, learner.pack(examples, most))

    agreement = await check_agreement(actor.engine, prompts, sampling, ask)
    if problem := agreement.problem(config.rollout.mismatch_alarm):
        raise InputError(problem)


def follow(config: ConfigDict, run: RunFolder, policy: Policy, learner: Learner) -> None:
    """What the other processes of a run do: learn from what the first one brings, and take part in writing."""
    sync = weight_sync(config, policy, run)
    sync.export(sync.folder(learner.done), learner.params)
    compare(learner, None)
    while learner.done < config.train.steps:
        if (batch := shared(None)) is None:
            if learner.done not in learner.kept():
                learner.save({})
            raise InputError("the first process has stopped")
        learner.update(batch)
        sync.export(sync.folder(learner.done), learner.params)
        if learner.is_due():
            learner.save({})


def learn(learner: Learner, batch: TrainBatch | None) -> dict[str, float | None]:
    """One optimiser step of all processes on the batch of the first."""
    return learner.update(shared(batch))


def compare(learner: Learner, batch: TrainBatch | None) -> dict[str, float]:
    """`Learner.compare` of all processes on the batch of the first."""
    return learner.compare(shared(batch))


def shared(batch: TrainBatch | None) -> TrainBatch | None:
    """The batch of the first process, in all; None when it has none and stops."""
    arrays = share({k: np.asarray(v) for k, v in vars(batch).items() if v is not None} if batch else _STOP)
    return None if "stop" in arrays else TrainBatch(**arrays | {"micro_batches": int(arrays["micro_batches"])})


_STOP = {"stop": np.ones(1)}


def save(learner: Learner, position: int, begun: Sequence[Begun], run: RunFolder) -> None:
    """A checkpoint, with every group that is in flight: a killed run loses no finished turn."""
    if begun:  # written first: a checkpoint never names a file that is not there
        write_begun(run.begun(learner.done), begun)
    learner.save({"position": position, "begun": bool(begun)})
    run.forget_begun(learner.kept())


@contextlib.asynccontextmanager
async def saved_when_stopped(learner: Learner, scheduler: Scheduler, run: RunFolder) -> AsyncIterator[None]:
    """Before a run ends because its judge cannot go on, what was learned and what was played is saved.

    A checkpoint that stands here already gets the turns that were played since, unless groups were replaced
    in between: then it would not fit them.
    """
    try:
        yield
    except CannotGoOn:
        shared(None)
        position, begun = scheduler.position, scheduler.unfinished()
        if learner.done not in learner.kept():
            save(learner, position, begun, run)
        elif learner.extra == {"position": position, "begun": True} and not scheduler.refilled:
            write_begun(run.begun(learner.done), begun)
        await scheduler.close()
        raise


# --------------------------------------------------------------------------------------- from scores to a batch


def make_group(config: ConfigDict, scored: Scored) -> Group:
    """Mixed rewards and advantages of one question's siblings."""
    rewards = group_rewards(config.reward.mix, scored.trajectories, scored.scores, config.reward.alpha)
    over_length = np.array([t.end.over_length for t in scored.trajectories])
    in_statistics, in_loss = over_length_masks(~np.isnan(rewards), over_length, config.reward.over_length)
    advantages, status = group_advantages(rewards, in_statistics)
    trained = in_loss & (status == OK)
    return Group(scored.question, scored.trajectories, scored.scores, rewards, advantages, trained)


def trained_examples(groups: Sequence[Group]) -> list[Example]:
    """Every trajectory of the step that goes into the loss."""
    return [
        dataclasses.replace(from_trajectory(trajectory, advantage), group=index)
        for index, group in enumerate(groups)
        for trajectory, advantage, trained in zip(
            group.trajectories, group.advantages, group.trained, strict=True
        )
        if trained
    ]


# ---------------------------------------------------------------------------------------------------- watching


class Clock:
    """Wall time of the parts of a step, in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str, less: float = 0.0) -> None:
        """The time since the last lap belongs to `part`, except `less` seconds of it."""
        now = time.perf_counter()
        self.times[part], self._last = now - self._last - less, now

    def metrics(self) -> dict[str, float]:
        return {f"time/{part}_s": seconds for part, seconds in self.times.items()}


class Counter:
    """Shows how many episodes of the step have ended."""

    def __init__(self, view: LiveView, total: int) -> None:
        self.view, self.total, self.ended = view, total, 0

    def __call__(self, trajectory: Trajectory) -> None:
        self.ended += 1
        self.view.phase(f"rollout {self.ended}/{self.total}")


def version_metrics(groups: Sequence[Group], version: int) -> dict[str, float]:
    """The version that acted, and how far behind it the oldest sampled token is."""
    oldest = [t.versions[t.mask != 0].min() for g in groups for t in g.trajectories if t.mask.any()]
    return {"version/policy": version, "version/staleness_max": int(version - min(oldest, default=version))}


def due(done: int, config: ConfigDict) -> bool:
    """Whether the trajectories of the step that was just finished are saved."""
    return done in (1, config.train.steps) or done % config.train.trajectories_every == 0


async def evaluate(step: int, config: ConfigDict, task: Task, actor: Actor, log: MetricsLog) -> None:
    """Answers each held-out question once, at the training temperature; once per step number."""
    if not task.held_out or any(row["step"] == step for row in MetricsLog.read(log.path)):
        return
    scored = await run_groups(actor.rollouts, task.held_out, 1, (config.seed, EVALUATION), actor.score)
    nothing = np.zeros(1)
    groups = [Group(s.question, s.trajectories, s.scores, nothing, nothing, nothing > 0) for s in scored]
    values = {k: v for k, v in rollout_metrics(groups).items() if k not in _GROUP_METRICS}
    log.append({"step": step, "questions": len(groups), **values})


_GROUP_METRICS = ("reward/mixed", "reward/zero_spread_groups", "reward/dropped_groups")


def finish(console: Console, run: RunFolder, policy: Policy) -> None:
    """The summary, and the files worth opening."""
    report = write_report(run.path)
    example = write_example(run, policy)
    console.print(summary_table(MetricsLog.read(run.metrics)))
    for row in MetricsLog.read(run.evaluations):
        console.print(
            f"held-out questions after step {row['step']}: outcome {row['reward/outcome']:.3f} "
            f"on {row['questions']}"
        )
    console.print(f"metrics:    {run.metrics}\nreport:     {report}\ntrajectory: {example}")


def write_example(run: RunFolder, policy: Policy) -> Path:
    """The best rewarded trajectory of the newest saved step, as text."""
    newest = max((run.path / "trajectories").glob("step_*.jsonl.gz"))
    best = max(
        ((g, i) for g in read_trajectories(newest) for i in range(len(g.rewards))),
        key=lambda pair: np.nan_to_num(pair[0].rewards[pair[1]], nan=-1.0),
    )
    group, i = best
    text = trajectory_to_text(
        group.question, group.trajectories[i], group.scores[i], group.rewards[i], group.advantages[i]
    )
    path = run.path / "trajectory.md"
    with atomic_file(path) as file:
        file.write(text.encode())
    return path
