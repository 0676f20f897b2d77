"""The learner of a run: state on its mesh, the compiled step, and the checkpoints it resumes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from carr_jax.learning.batch import Example, pack, packing, replayed
from carr_jax.learning.checkpoint import Checkpoints
from carr_jax.learning.compare import make_comparison
from carr_jax.learning.evaluate import make_evaluation
from carr_jax.learning.layout import model_cost
from carr_jax.learning.step import LearnConfig, init_state, make_train_step, place
from carr_jax.models.compute import Compute, kernels_for
from carr_jax.models.qwen3 import param_shardings
from carr_jax.policy import Policy
from carr_jax.records import InputError, TrainBatch
from carr_jax.run import RunFolder
from carr_jax.sharding import make_mesh, row_shards

_WITHOUT_TOKENS = ("learn/tokens", "learn/lr", "learn/skipped", "learn/padding")


class Learner:
    """Owns everything that an optimiser step changes.

    `done` is the number of finished steps: 0 for a new run, else where the newest checkpoint stands.  `extra`
    is what was saved beside the newest checkpoint.  `rows` is how many rows a micro-batch has.
    """

    def __init__(self, config: ConfigDict, policy: Policy, loss: str, steps: int, run: RunFolder) -> None:
        self._mesh = make_mesh(config.mesh)
        self.rows = rows_of(config, self._mesh)
        self._layout = (row_shards(self._mesh), model_cost(policy.model))  # what packing and its measures need
        self._config = config.learn
        learn = learn_config(config, steps, self._mesh, self._mesh.devices.flat[0].platform)
        params = jax.device_put(policy.params, param_shardings(policy.model, self._mesh))
        state = init_state(params, learn)
        self._step = make_train_step(policy.model, learn, loss)
        self._compare = make_comparison(policy.model, learn)
        self._evaluate = make_evaluation(policy.model, learn)
        self._checkpoints = Checkpoints(run.checkpoints, config.checkpoint.keep)
        self._every, self._steps = config.checkpoint.every, steps
        newest = self._checkpoints.latest()
        self.done = newest or 0  # a run that stopped in its first step has a checkpoint 0
        self.state, self.extra = (state, {}) if newest is None else self._checkpoints.restore(newest, state)

    @property
    def params(self) -> Any:
        """The current weights; valid until the next `update`, which reuses their memory."""
        return self.state.params

    def pack(self, examples: Sequence[Example], micro_batches: int, normalizer: str = "") -> TrainBatch:
        """The examples of a step, packed as `config.learn` says, balanced for this mesh and this model."""
        learn = self._config
        shape = (learn.row_length, self.rows, micro_batches)
        return pack(examples, *shape, normalizer or learn.normalizer, *self._layout, together=learn.pack)

    def update(self, batch: TrainBatch) -> dict[str, float | None]:
        """One optimiser step; returns its `learn/*` metrics once the new weights are there.

        A batch without a trained token has no loss, entropy and so on: those are None.
        """
        self.state, metrics = self._step(self.state, place(batch, self._mesh))
        self.done += 1
        values = jax.device_get(jax.block_until_ready(metrics))
        row = {k: float(v) for k, v in values.items()}
        row |= {f"learn/{k}": v for k, v in packing(batch, *self._layout)._asdict().items()}
        row |= {} if batch.routes is None else {"learn/replayed": replayed(batch)}
        if row["learn/tokens"]:
            return row
        return {k: v if k in _WITHOUT_TOKENS else None for k, v in row.items()}

    def compare(self, batch: TrainBatch) -> dict[str, float]:
        """How far the current weights are from the log-probs of a batch, see `learning.compare`."""
        return self._compare(self.params, place(batch, self._mesh))

    def loss_of(self, examples: Sequence[Example], size: int, micro_batches: int) -> float:
        """Mean negative log-likelihood of a target token, in nats; nothing is learned.  `size` go at a time."""
        total, targets = 0.0, 0.0
        for start in range(0, len(examples), size):
            batch = self.pack(examples[start : start + size], micro_batches, "global_tokens")
            loss, tokens = self._evaluate(self.params, place(batch, self._mesh))
            total, targets = total + loss * tokens, targets + tokens
        return total / max(targets, 1.0)

    def is_due(self) -> bool:
        """Whether a checkpoint belongs here: every `checkpoint.every` steps and after the last."""
        return self.done % self._every == 0 or self.done == self._steps

    def save(self, extra: dict[str, Any]) -> None:
        """A checkpoint of the state, with `extra` (JSON values) beside it."""
        self._checkpoints.save(self.done, self.state, extra)
        self.extra = extra

    def kept(self) -> list[int]:
        """The steps whose checkpoints are on disk."""
        return self._checkpoints.kept()


def learn_config(config: ConfigDict, steps: int, mesh: Mesh, platform: str) -> LearnConfig:
    """The learner's part of a configuration; `platform` (tpu, gpu, cpu) decides what "auto" kernels are."""
    names = {f.name for f in dataclasses.fields(LearnConfig)}
    fields = {k: v for k, v in config.learn.items() if k in names}
    if "rollout" in config:
        fields["temperature"] = config.rollout.temperature  # the log-probs of what was really sampled (P15)
    model = config.model
    attention, experts = kernels_for(platform, model.attention, model.experts)
    compute = Compute(model.dtype, model.remat, attention, experts, mesh)
    return LearnConfig(**fields, total_steps=steps, compute=compute)


def rows_of(config: ConfigDict, mesh: Mesh) -> int:
    """Rows of a micro-batch: `learn.rows`, or one for each part of the mesh that has rows of its own.

    Raises InputError when they cannot be dealt evenly.
    """
    shards = row_shards(mesh)
    if config.learn.rows % shards:
        raise InputError(f"config.learn.rows={config.learn.rows} cannot be dealt to {shards} parts of the mesh")
    return config.learn.rows or shards
