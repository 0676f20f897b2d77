"""Supervised fine-tuning on traces of a scripted expert, kept only when the reward engine accepts them.

One run, top to bottom: the expert answers the questions of the `sft` split through the same episode code that
reinforcement learning uses; each trace is scored by the same rewards; what falls below the thresholds is
rejected; the rest is packed and learned, loss on sampled tokens only.  A policy that starts from random weights
first reads pages of other worlds, which teaches it to copy names.  It can be killed and resumed.

Several processes may run it together, each for the devices of its host: all make the same traces and batches,
the first writes and shows what happens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from carr_jax.agent.chat import Chat
from carr_jax.agent.tokenizer import Tokenizer, train_bpe
from carr_jax.distributed import is_first
from carr_jax.learner import Learner
from carr_jax.learning.batch import Example, supervised_example
from carr_jax.learning.layout import rows_enough
from carr_jax.observe.live import LiveView
from carr_jax.observe.metrics import MetricsLog
from carr_jax.policy import SAMPLE, Policy, load_policy, write_policy
from carr_jax.records import InputError, Question, Score, Trajectory
from carr_jax.rewards.group import score_group
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.rollout.scripted import ScriptedEngine, expert
from carr_jax.run import RunFolder
from carr_jax.sanity import warning
from carr_jax.search.browser import page_text
from carr_jax.search.world import WorldConfig, build_world
from carr_jax.task import Task, load_task

TOKENIZER_TRACES = 600  # expert traces that the new tokenizer sees beside the pages


def finetune(config: ConfigDict, workdir: Path) -> None:
    """Trains the policy that `config` describes and writes it to `workdir`/policy."""
    # ---------------------------------------------------------------------- questions, traces, rejection
    console = Console(quiet=not is_first())
    run = RunFolder(workdir)
    task = load_task(config, "sft")
    policy = load_policy(config, tokenizer_texts(task))
    if config.model.policy and (said := warning(policy)):
        console.print(f"config.model.policy={config.model.policy}: {said}", style="yellow")
    chat = Chat(policy.tokenizer)
    kept, rejected = [], 0
    for seed in range(config.world.seed, config.world.seed + config.sft.worlds):
        place = f"world {seed}" if config.data.source == "world" else config.data.path
        console.print(f"the expert answers {len(task.questions)} questions of {place}")
        found, failed = asyncio.run(expert_traces(config, in_world(config, seed, task), chat))
        kept, rejected = kept + found, rejected + failed
    console.print(f"{len(kept)} traces kept, {rejected} rejected")
    if not kept:
        raise InputError("no trace reaches config.sft.min_outcome and config.sft.min_rubric")
    if not config.model.policy:
        policy = with_sample(policy, kept)
    run.describe(config, task, policy)

    # ---------------------------------------------------------------------- the learner, new or resumed
    examples = [supervised_example(t.ids, t.mask, i) for i, t in enumerate(kept)]
    reading = config.sft.pretrain_steps
    pages = reading_examples(config, policy.tokenizer)
    steps = config.train.steps or reading + len(examples) // config.sft.batch * config.sft.epochs
    learner = Learner(config, policy, "sft", steps, run)
    metrics = MetricsLog(run.metrics, writes=is_first())
    metrics.truncate_after(learner.done)
    most = max(
        most_micro_batches(examples, config.sft.batch, config, learner.rows),
        most_micro_batches(pages, config.sft.pretrain_pages, config, learner.rows),
    )

    # ---------------------------------------------------------------------- one optimiser step after another
    with LiveView(steps, learner.done, console) as view:
        for step in range(learner.done, steps):
            if step < reading:
                chosen = batch_of(pages, config.seed, step, config.sft.pretrain_pages)
            else:
                chosen = batch_of(examples, config.seed, step - reading, config.sft.batch)
            row = {"step": step + 1, **learner.update(learner.pack(chosen, most))}
            metrics.append(row)
            if learner.is_due():
                learner.save({"position": (step + 1) * config.sft.batch})
            view.step(row)
    write_policy(run.policy, dataclasses.replace(policy, params=learner.params))
    console.print(f"policy: {run.policy}")


def with_sample(policy: Policy, kept: Sequence[Trajectory]) -> Policy:
    """The policy with its shortest trace beside it: what one that began with random weights can predict."""
    text = policy.tokenizer.decode(min((t.ids for t in kept), key=len))
    return dataclasses.replace(policy, beside={**policy.beside, SAMPLE: text.encode()})


def in_world(config: ConfigDict, seed: int, task: Task) -> Task:
    """The task in the world of another seed; `task` itself is that of `config.world.seed`."""
    if seed == config.world.seed:
        return task
    other = config.copy_and_resolve_references()
    other.world.seed = seed
    return load_task(other, "sft")


def tokenizer_texts(task: Task) -> list[str]:
    """Pages, and expert traces so that the words of the turn grammar become short too."""
    pages = [page.text for page in task.pages]
    chat = Chat(train_bpe(pages, 1024))
    rollouts = Rollouts(None, chat, task.tools, task.budgets)
    traces = asyncio.run(_expert_episodes(rollouts, task.questions[:TOKENIZER_TRACES]))
    return pages + [chat.tokenizer.decode(t.ids) for t in traces]


async def expert_traces(config: ConfigDict, task: Task, chat: Chat) -> tuple[list[Trajectory], int]:
    """(kept traces in the order of the questions, number rejected)."""
    rollouts = Rollouts(None, chat, task.tools, task.budgets, strict=config.agent.strict)
    traces = await _expert_episodes(rollouts, task.questions, config.sft.wander)
    judge = ExactJudge()
    kept = []
    for question, trace in zip(task.questions, traces, strict=True):
        (score,) = await score_group(question, [trace], judge, "carr_paper", score_everything=True)
        if accepted(score, config.sft.min_outcome, config.sft.min_rubric):
            kept.append(trace)
    return kept, len(traces) - len(kept)


def reading_examples(config: ConfigDict, tokenizer: Tokenizer) -> list[Example]:
    """Pages of worlds with other seeds, each read once in `pretrain_steps` steps; every token is a target."""
    wanted = config.sft.pretrain_steps * config.sft.pretrain_pages
    texts: list[str] = []
    seed = config.world.seed
    while len(texts) < wanted:
        seed += 1
        texts += map(page_text, build_world(WorldConfig(**{**config.world.to_dict(), "seed": seed})).pages)
    ids = [np.asarray(tokenizer.encode_plain(text), np.int32) for text in texts[:wanted]]
    return [supervised_example(x, np.ones(x.size), i) for i, x in enumerate(ids)]


def accepted(score: Score, min_outcome: float, min_rubric: float) -> bool:
    """Rejection sampling: a known score that reaches both thresholds."""
    return score.known and score.outcome >= min_outcome and (score.rubric or 0.0) >= min_rubric


async def _expert_episodes(
    rollouts: Rollouts, questions: Sequence[Question], wander: float = 0.0
) -> list[Trajectory]:
    traces = []
    for question in questions:
        engine = ScriptedEngine(rollouts.chat, expert(question, wander))
        traces.append(await dataclasses.replace(rollouts, engine=engine).episode(question, 0, 0))
    return traces


def batch_of(examples: Sequence[Example], seed: int, step: int, size: int) -> list[Example]:
    """The examples of an optimiser step; a pure function, each epoch in its own order, the rest left out."""
    per_epoch = len(examples) // size
    epoch, index = divmod(step, per_epoch)
    order = random.Random(f"{seed}/{epoch}").sample(range(len(examples)), len(examples))
    return [examples[i] for i in order[index * size : (index + 1) * size]]


def most_micro_batches(examples: Sequence[Example], size: int, config: ConfigDict, rows: int) -> int:
    """Micro-batches that hold any `size` of the examples, at least 1."""
    longest = sorted((e.ids.size for e in examples), reverse=True)[:size]
    enough = rows_enough(longest, config.learn.row_length) if config.learn.pack else len(longest)
    return max(1, -(-enough // rows))
