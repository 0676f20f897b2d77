"""The supervised loss of examples that are not learned from."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import Array, lax

from carr_jax.learning.step import Arrays, LearnConfig, Params, batch_arrays, sft_micro_loss
from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import working_copy
from carr_jax.records import TrainBatch


def make_evaluation(
    model: ModelConfig, config: LearnConfig
) -> Callable[[Params, TrainBatch], tuple[float, float]]:
    """(params, batch) -> (loss of the batch, as its weights say; number of its targets).

    The forward pass is that of the training step, of the same shape, on the same mesh.
    """

    @jax.jit
    def one(params: Params, arrays: Arrays, i: Array) -> tuple[Array, Array]:
        micro = {k: lax.dynamic_index_in_dim(v, i, keepdims=False) for k, v in arrays.items()}
        loss, statistics = sft_micro_loss(working_copy(params, config.compute), micro, model, config)
        return loss, statistics.sums["tokens"]

    def evaluate(params: Params, batch: TrainBatch) -> tuple[float, float]:
        parts = [jax.device_get(one(params, batch_arrays(batch), i)) for i in range(batch.micro_batches)]
        return sum(float(loss) for loss, _ in parts), sum(float(tokens) for _, tokens in parts)

    return evaluate
