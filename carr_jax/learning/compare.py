"""How far the trainer's log-probs are from those that came with a batch, without learning from it."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import Array, lax

from carr_jax.learning.losses import Statistics
from carr_jax.learning.step import Arrays, LearnConfig, Params, batch_arrays, policy_micro_loss
from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import working_copy
from carr_jax.records import TrainBatch


def make_comparison(
    model: ModelConfig, config: LearnConfig
) -> Callable[[Params, TrainBatch], dict[str, float]]:
    """(params, batch) -> `tokens`, and of the trained ones `logprob_diff`, `logprob_diff_max`, `ratio_mean`.

    The forward pass is that of the training step, of the same shape, on the same mesh.
    """

    @jax.jit
    def one(params: Params, arrays: Arrays, i: Array) -> Statistics:
        micro = {k: lax.dynamic_index_in_dim(v, i, keepdims=False) for k, v in arrays.items()}
        return policy_micro_loss(working_copy(params, config.compute), micro, model, config)[1]

    def compare(params: Params, batch: TrainBatch) -> dict[str, float]:
        parts = [jax.device_get(one(params, batch_arrays(batch), i)) for i in range(batch.micro_batches)]
        tokens = sum(float(p.sums["tokens"]) for p in parts)
        means = {
            k: sum(float(p.sums[k]) for p in parts) / max(tokens, 1) for k in ("logprob_diff", "ratio_mean")
        }
        largest = max((float(p.maxima["logprob_diff_max"]) for p in parts), default=0.0)
        return {"tokens": tokens, **means, "logprob_diff_max": largest}

    return compare
