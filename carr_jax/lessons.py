"""What supervised fine-tuning learns from: frozen traces, or those of the expert; and pages, for a beginner."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from carr_jax.agent.chat import Chat
from carr_jax.agent.tokenizer import Tokenizer, train_bpe
from carr_jax.collecting import by_expert, by_rewards
from carr_jax.data.frozen import manifest_of
from carr_jax.learning.batch import Example, supervised_example
from carr_jax.learning.layout import rows_enough
from carr_jax.policy import Policy, load_policy
from carr_jax.records import InputError, Trajectory
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rewards.rejection import Bar, defects
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.run import inputs_of
from carr_jax.search.browser import page_text
from carr_jax.search.world import WorldConfig, build_world
from carr_jax.task import Task, epoch_order, load_task
from carr_jax.traces import read_traces, traces_of

TOKENIZER_TRACES = 600  # expert traces that the new tokenizer sees beside the pages


@dataclass(frozen=True)
class Lessons:
    """The policy that learns, the traces in their order, and hashes of what they were made from."""

    policy: Policy
    traces: Sequence[Trajectory]
    inputs: Mapping[str, str]


def load_lessons(config: ConfigDict, console: Console) -> Lessons:
    """Traces of the folders in `config.sft.traces`, else of the expert, who answers the questions now.

    Raises InputError when there are none, or one is longer than a row.
    """
    lessons = _from_folders(config) if config.sft.traces else _from_expert(config, console)
    console.print(f"{len(lessons.traces)} traces")
    if not lessons.traces:
        raise InputError("no trace reaches config.sft.min_outcome and config.sft.min_rubric")
    longest = max(lessons.traces, key=lambda t: len(t.ids))
    if len(longest.ids) > config.learn.row_length:
        raise InputError(
            f"a trace of question {longest.question_id} has {len(longest.ids):,} tokens, more than "
            f"config.learn.row_length={config.learn.row_length:,}: a trajectory is never cut"
        )
    return lessons


def _from_folders(config: ConfigDict) -> Lessons:
    folders = [Path(name) for name in config.sft.traces.split(",")]
    policy = load_policy(config, [])
    wanted = policy.tokenizer.content_hash()
    traces = [trace for folder in folders for trace in read_traces(folder, wanted)]
    sums = [json.loads(manifest_of(traces_of(folder)).read_bytes())["sha256"] for folder in folders]
    return Lessons(policy, traces, {"traces_sha256": ",".join(sums)})


# ------------------------------------------------------------------------------------------------- the expert


def _from_expert(config: ConfigDict, console: Console) -> Lessons:
    """His traces in each of `sft.worlds` worlds, as far as the rewards accept them."""
    task = load_task(config, "sft")
    brings_one = config.model.policy or config.model.tokenizer
    policy = load_policy(config, [] if brings_one else tokenizer_texts(task))
    kept: list[Trajectory] = []
    for seed in range(config.world.seed, config.world.seed + config.sft.worlds):
        place = f"world {seed}" if config.data.source == "world" else config.data.path
        console.print(f"the expert answers {len(task.questions)} questions of {place}")
        kept += asyncio.run(expert_traces(config, in_world(config, seed, task), Chat(policy.tokenizer)))
    return Lessons(policy, kept, inputs_of(task))


def in_world(config: ConfigDict, seed: int, task: Task) -> Task:
    """The task in the world of another seed; `task` itself is that of `config.world.seed`."""
    if seed == config.world.seed:
        return task
    other = config.copy_and_resolve_references()
    other.world.seed = seed
    return load_task(other, "sft")


async def expert_traces(config: ConfigDict, task: Task, chat: Chat) -> list[Trajectory]:
    """The traces that are kept, in the order of the questions."""
    bar = Bar(config.sft.min_outcome, config.sft.min_rubric)
    play = by_expert(
        Rollouts(None, chat, task.tools, task.budgets, strict=config.agent.strict), config.sft.wander
    )
    grade = by_rewards(ExactJudge(), bar)
    kept = []
    for question in task.questions:
        trajectory = (await play(question, 0)).trajectory
        score = await grade(question, trajectory)
        if score.known and not defects(trajectory, score, bar):
            kept.append(trajectory)
    return kept


def tokenizer_texts(task: Task) -> list[str]:
    """Pages, and expert traces so that the words of the turn grammar become short too."""
    pages = [page.text for page in task.pages]
    chat = Chat(train_bpe(pages, 1024))
    play = by_expert(Rollouts(None, chat, task.tools, task.budgets))

    async def traces() -> list[Trajectory]:
        return [(await play(question, 0)).trajectory for question in task.questions[:TOKENIZER_TRACES]]

    return pages + [chat.tokenizer.decode(t.ids) for t in asyncio.run(traces())]


# ---------------------------------------------------------------------------------------------------- examples


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


def divided(traces: Sequence[Trajectory], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """(traces to learn, traces held out), of whole questions: two attempts at one are nearly the same text."""
    names = sorted({t.question_id for t in traces})
    away = set(random.Random(f"{seed}/held out").sample(names, round(share * len(names))))
    learned, held_out = [], []
    for index, trace in enumerate(traces):
        example = supervised_example(trace.ids, trace.mask, index)
        (held_out if trace.question_id in away else learned).append(example)
    return learned, held_out


def batch_of(examples: Sequence[Example], seed: int, step: int, size: int) -> list[Example]:
    """The examples of an optimiser step; a pure function, each epoch in its own order, the rest left out."""
    per_epoch = len(examples) // size
    epoch, index = divmod(step, per_epoch)
    order = epoch_order(seed, epoch, len(examples))
    return [examples[i] for i in order[index * size : (index + 1) * size]]


def most_micro_batches(examples: Sequence[Example], size: int, config: ConfigDict, rows: int) -> int:
    """Micro-batches that hold any `size` of the examples, at least 1."""
    longest = sorted((e.ids.size for e in examples), reverse=True)[:size]
    enough = rows_enough(longest, config.learn.row_length) if config.learn.pack else len(longest)
    return max(1, -(-enough // rows))
