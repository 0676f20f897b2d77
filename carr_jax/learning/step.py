"""One optimiser step: gradients summed over micro-batches, clip, AdamW, as one compiled function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from carr_jax.learning import losses, optimizer
from carr_jax.learning.logprobs import token_logprobs
from carr_jax.models import qwen3
from carr_jax.models.config import ModelConfig
from carr_jax.records import TrainBatch

Params = Any
Arrays = dict[str, Array]  # the arrays of a TrainBatch by name
LossFn = Callable[[Params, Arrays], tuple[Array, losses.Statistics]]


@dataclasses.dataclass(frozen=True)
class LearnConfig:
    """What the step must know; fields as in `config.py`, sections `learn`, `model` and `rollout`."""

    lr: float = 2e-6
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int = 0  # read by the cosine schedule only
    b1: float = 0.9
    b2: float = 0.98
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    eps_low: float = 0.2
    eps_high: float = 0.28
    ratio_correction: str = "icepop"
    icepop_low: float = 0.5
    icepop_high: float = 2.0
    tis_cap: float = 2.0
    temperature: float = 1.0
    logprob_chunk: int = 1024
    dtype: str = "float32"
    remat: str = "none"

    def optimizer(self) -> optax.GradientTransformation:
        names = ("lr", "schedule", "warmup_steps", "total_steps", "b1", "b2", "weight_decay", "clip_norm")
        return optimizer.adamw(**{name: getattr(self, name) for name in names})

    def learning_rate(self, step: Array) -> Array:
        return optimizer.learning_rate(
            step,
            peak=self.lr,
            schedule=self.schedule,
            warmup_steps=self.warmup_steps,
            total_steps=self.total_steps,
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that training changes: fp32 master weights, AdamW's moments, the int32 count of applied steps."""

    params: Params
    opt_state: optax.OptState
    step: Array


def init_state(params: Params, config: LearnConfig) -> TrainState:
    """A fresh state.  Moments take the sharding of their parameters, counters stand on all their devices.

    Raises ValueError for a parameter that is not fp32: a step of 2e-6 would be lost in bf16.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(f"parameter {name} is {leaf.dtype}: training needs float32 master weights")
    # A copy, because the step donates its state and the caller may go on using `params`.
    params = jax.tree.map(jnp.copy, params)
    state = TrainState(params, config.optimizer().init(params), jnp.zeros((), jnp.int32))
    some = jax.tree.leaves(params)[0].sharding
    if not isinstance(some, NamedSharding):
        return state
    everywhere = NamedSharding(some.mesh, PartitionSpec())
    return jax.tree.map(lambda x: x if x.ndim else jax.device_put(x, everywhere), state)


def policy_micro_loss(params: Params, micro: Arrays, model: ModelConfig, config: LearnConfig):
    """C-GRPO's loss of one micro-batch.

    There is one optimiser step per batch, so the policy at version v is the one being differentiated:
    old = stop_gradient(new), the ratio is 1 and only its gradient matters (P12).
    """
    logp, entropy = _forward(params, micro, model, config)
    old = lax.stop_gradient(logp)
    weight = losses.correction_weight(
        config.ratio_correction,
        old,
        micro["engine_logprobs"],
        micro["weights"] != 0,
        icepop_low=config.icepop_low,
        icepop_high=config.icepop_high,
        tis_cap=config.tis_cap,
    )
    return losses.policy_loss(
        logp,
        old,
        micro["engine_logprobs"],
        entropy,
        micro["advantages"],
        micro["weights"],
        weight,
        eps_low=config.eps_low,
        eps_high=config.eps_high,
    )


def sft_micro_loss(params: Params, micro: Arrays, model: ModelConfig, config: LearnConfig):
    """Negative log-likelihood of one micro-batch."""
    logp, entropy = _forward(params, micro, model, config)
    return losses.sft_loss(logp, entropy, micro["weights"])


def _forward(params: Params, micro: Arrays, model: ModelConfig, config: LearnConfig) -> tuple[Array, Array]:
    """Log-prob and entropy [R, T] of the targets."""
    hidden = qwen3.hidden_states(
        params,
        model,
        micro["tokens"],
        micro["positions"],
        micro["segments"],
        remat=config.remat,
        dtype=jnp.dtype(config.dtype),
    )
    head = qwen3.head_matrix(params, model)
    return token_logprobs(hidden, head, micro["targets"], config.temperature, config.logprob_chunk)


def accumulate(
    loss_fn: LossFn, params: Params, arrays: Arrays, micro_batches: Array, shardings: Params | None = None
) -> tuple[Params, Array, losses.Statistics]:
    """Sums of gradient (fp32), loss and statistics over the first `micro_batches` of the [M, ...] arrays.

    The bound is a traced value: an emptier batch of the same shape costs less and compiles nothing.  The
    gradient is taken inside the loop body, so nothing is differentiated through the loop.  `shardings` (those
    of the parameters) keep the gradient sums from being replicated on a mesh.
    """
    gradient = jax.value_and_grad(loss_fn, has_aux=True)

    def one(i: Array) -> tuple[Params, Array, losses.Statistics]:
        micro = {k: lax.dynamic_index_in_dim(v, i, keepdims=False) for k, v in arrays.items()}
        (loss, statistics), grads = gradient(params, micro)
        return jax.tree.map(lambda x: x.astype(jnp.float32), (grads, loss, statistics))

    def add(i: Array, total: tuple) -> tuple:
        grads, loss, statistics = one(i)
        sums = jax.tree.map(jnp.add, (total[0], total[1], total[2].sums), (grads, loss, statistics.sums))
        maxima = jax.tree.map(jnp.maximum, total[2].maxima, statistics.maxima)
        return sums[0], sums[1], losses.Statistics(sums[2], maxima)

    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one, 0))
    if shardings is not None:
        zeros = (lax.with_sharding_constraint(zeros[0], shardings), *zeros[1:])
    return lax.fori_loop(0, micro_batches, add, zeros)


def apply_gradients(
    state: TrainState, grads: Params, total_weight: Array, tx: optax.GradientTransformation
) -> tuple[TrainState, Array, Array]:
    """(new state, gradient norm before the clip, whether the step was taken).

    A gradient that is not finite (P27) or a batch without weight (P23) leaves every leaf as it was, bit for
    bit: the clip would turn inf into NaN, and weight decay would move the weights even without data.
    """
    norm = optax.global_norm(grads)
    good = jnp.isfinite(norm) & (total_weight > 0)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    proposed = TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1)
    return jax.tree.map(lambda new, old: jnp.where(good, new, old), proposed, state), norm, good


def step_metrics(loss: Array, norm: Array, good: Array, lr: Array, statistics: losses.Statistics) -> Arrays:
    """fp32 scalars by metric name; means are over the trained tokens."""
    sums = dict(statistics.sums)
    tokens = sums.pop("tokens")
    sums.pop("weight")
    metrics = {k: v / jnp.maximum(tokens, 1.0) for k, v in sums.items()} | dict(statistics.maxima)
    metrics |= {"loss": loss, "grad_norm": norm, "tokens": tokens, "lr": lr, "skipped": ~good}
    return {f"learn/{k}": jnp.asarray(v, jnp.float32) for k, v in metrics.items()}


def make_train_step(
    model: ModelConfig, config: LearnConfig, loss: str, state: TrainState | None = None
) -> Callable[[TrainState, TrainBatch], tuple[TrainState, Arrays]]:
    """The compiled step for `loss` "policy" or "sft": (state, batch) -> (state, metrics).

    The state passed in is donated and must not be used again.  Give a sharded `state` (or one like it) to
    pin the new state, and the gradient sums, to its shardings; batch arrays may be on the mesh already.
    """
    micro_loss = {"policy": policy_micro_loss, "sft": sft_micro_loss}[loss]
    tx = config.optimizer()
    shardings = None if state is None else jax.tree.map(lambda x: x.sharding, state)

    def train_step(state: TrainState, arrays: Arrays, micro_batches: Array) -> tuple[TrainState, Arrays]:
        def loss_fn(params: Params, micro: Arrays):
            return micro_loss(params, micro, model, config)

        pinned = None if shardings is None else shardings.params
        grads, loss_sum, statistics = accumulate(loss_fn, state.params, arrays, micro_batches, pinned)
        lr = config.learning_rate(state.step)
        state, norm, good = apply_gradients(state, grads, statistics.sums["weight"], tx)
        return state, step_metrics(loss_sum, norm, good, lr, statistics)

    compiled = jax.jit(train_step, donate_argnums=0, out_shardings=shardings and (shardings, None))

    def call(state: TrainState, batch: TrainBatch) -> tuple[TrainState, Arrays]:
        return compiled(state, batch_arrays(batch), np.int32(batch.micro_batches))

    return call


def batch_arrays(batch: TrainBatch) -> Arrays:
    """The [M, R, T] arrays of a batch by name."""
    fields = (f.name for f in dataclasses.fields(batch) if f.name != "micro_batches")
    return {name: getattr(batch, name) for name in fields}


def place(batch: TrainBatch, sharding: jax.sharding.Sharding) -> TrainBatch:
    """The batch with its arrays on the mesh; every host passes the same batch."""
    placed = {k: jax.device_put(v, sharding) for k, v in batch_arrays(batch).items()}
    return dataclasses.replace(batch, **placed)
