"""Supervised fine-tuning on traces of a teacher, kept only where the reward engine accepts them.

One run, top to bottom: traces come from folders that `launch/collect_sft.py` froze, or are written now by the
scripted expert; they are packed and learned, loss on sampled tokens only.  A part may be held out: its loss is
measured after each epoch.  A policy that starts from random weights first reads pages of other worlds, which
teaches it to copy names.  It can be killed and resumed.

Several processes may run it together, each for the devices of its host: all make the same batches, the first
writes and shows what happens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict
from rich.console import Console

from carr_jax.distributed import is_first
from carr_jax.learner import Learner
from carr_jax.lessons import batch_of, divided, load_lessons, most_micro_batches, reading_examples
from carr_jax.observe.live import LiveView
from carr_jax.observe.metrics import MetricsLog
from carr_jax.policy import SAMPLE, Policy, write_policy
from carr_jax.records import InputError, Trajectory
from carr_jax.run import RunFolder
from carr_jax.sanity import warning


def finetune(config: ConfigDict, workdir: Path) -> None:
    """Trains the policy that `config` describes and writes it to `workdir`/policy."""
    # ---------------------------------------------------------------------- what to learn from, who learns
    console = Console(quiet=not is_first())
    run = RunFolder(workdir)
    lessons = load_lessons(config, console)
    policy, size = lessons.policy, config.sft.batch
    if config.model.policy and (said := warning(policy)):
        console.print(f"config.model.policy={config.model.policy}: {said}", style="yellow")
    if not config.model.policy:
        policy = with_sample(policy, lessons.traces)
    examples, held_out = divided(lessons.traces, config.sft.held_out, config.seed)
    if len(examples) < size:
        raise InputError(f"{len(examples)} traces to learn from are less than config.sft.batch={size}")
    run.describe(config, policy, lessons.inputs)

    # ---------------------------------------------------------------------- the learner, new or resumed
    reading, per_epoch = config.sft.pretrain_steps, len(examples) // size
    pages = reading_examples(config, policy.tokenizer)
    steps = config.train.steps or reading + per_epoch * config.sft.epochs
    learner = Learner(config, policy, "sft", steps, run)
    metrics = MetricsLog(run.metrics, writes=is_first())
    metrics.truncate_after(learner.done)
    most = max(
        most_micro_batches([*examples, *held_out], size, config, learner.rows),
        most_micro_batches(pages, config.sft.pretrain_pages, config, learner.rows),
    )

    # ---------------------------------------------------------------------- one optimiser step after another
    with LiveView(steps, learner.done, console) as view:
        for step in range(learner.done, steps):
            if step < reading:
                chosen = batch_of(pages, config.seed, step, config.sft.pretrain_pages)
            else:
                chosen = batch_of(examples, config.seed, step - reading, size)
            row = {"step": step + 1, **learner.update(learner.pack(chosen, most))}
            if held_out and (step + 1 == steps or (step + 1 - reading) in range(per_epoch, steps, per_epoch)):
                view.phase("held-out traces")
                row["learn/held_out_loss"] = learner.loss_of(held_out, size, most)
            metrics.append(row)
            if learner.is_due():
                learner.save({"position": (step + 1) * size})
            view.step(row)
    write_policy(run.policy, dataclasses.replace(policy, params=learner.params))
    console.print(f"policy: {run.policy}")


def with_sample(policy: Policy, kept: Sequence[Trajectory]) -> Policy:
    """The policy with its shortest trace beside it: what one that began with random weights can predict."""
    text = policy.tokenizer.decode(min((t.ids for t in kept), key=len))
    return dataclasses.replace(policy, beside={**policy.beside, SAMPLE: text.encode()})
