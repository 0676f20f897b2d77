"""One optimiser step: gradients summed over micro-batches, clip, AdamW, as one compiled function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from carr_jax.learning import losses, optimizer
from carr_jax.learning.logprobs import token_logprobs
from carr_jax.models import qwen3
from carr_jax.models.attention import context_order
from carr_jax.models.compute import Compute
from carr_jax.models.config import ModelConfig
from carr_jax.records import TrainBatch
from carr_jax.sharding import batch_sharding

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
    moments: str = "float32"
    compute: Compute = Compute()

    def optimizer(self) -> optax.GradientTransformation:
        names = ("lr", "schedule", "warmup_steps", "total_steps", "b1", "b2", "weight_decay", "clip_norm")
        tx = optimizer.adamw(**{name: getattr(self, name) for name in names})
        return optimizer.half_moments(tx) if self.moments == "bfloat16" else tx

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
    """A fresh state.  On a mesh, moments take the sharding of their parameters.

    Raises ValueError for a parameter that is not fp32: a step of 2e-6 would be lost in bf16.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(f"parameter {name} is {leaf.dtype}: training needs float32 master weights")
    shardings = None
    if config.compute.mesh is not None:
        shardings = state_shardings(jax.tree.map(lambda x: x.sharding, params), params, config)
    # The result is a copy, because the step donates its state and the caller may go on using `params`.
    return jax.jit(lambda p: _new_state(p, config), out_shardings=shardings)(params)


def _new_state(params: Params, config: LearnConfig) -> TrainState:
    return TrainState(params, config.optimizer().init(params), jnp.zeros((), jnp.int32))


def state_shardings(shardings: Params, shapes: Params, config: LearnConfig) -> TrainState:
    """The shardings of a state, from those of its parameters (and their arrays or shapes).

    Moments lie like their parameters, with `moments` "host" in the memory of the host.
    Counters are everywhere.
    """
    mesh = config.compute.mesh
    everywhere = NamedSharding(mesh, PartitionSpec())
    if config.moments == "host":
        beside = jax.tree.map(lambda s: s.with_memory_kind("pinned_host"), shardings)
    else:
        beside = shardings
    tx = config.optimizer()
    opt_state = optax.tree_utils.tree_map_params(
        tx,
        lambda _, sharding: sharding,
        jax.eval_shape(tx.init, shapes),
        beside,
        transform_non_params=lambda _: everywhere,
    )
    return TrainState(shardings, opt_state, everywhere)


def abstract_state(model: ModelConfig, config: LearnConfig) -> TrainState:
    """`init_state` as jax.ShapeDtypeStructs on the mesh of `config.compute`; allocates nothing."""
    shapes = qwen3.param_shapes(model)
    shardings = state_shardings(qwen3.param_shardings(model, config.compute.mesh), shapes, config)
    arrays = jax.eval_shape(lambda p: _new_state(p, config), shapes)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), arrays, shardings)


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
    loss, statistics = losses.policy_loss(
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
    sequences = losses.sequence_outliers(old, micro["engine_logprobs"], micro["weights"], micro["segments"])
    return loss, statistics._replace(sums=statistics.sums | sequences)


def sft_micro_loss(params: Params, micro: Arrays, model: ModelConfig, config: LearnConfig):
    """Negative log-likelihood of one micro-batch."""
    logp, entropy = _forward(params, micro, model, config)
    return losses.sft_loss(logp, entropy, micro["weights"])


def _forward(params: Params, micro: Arrays, model: ModelConfig, config: LearnConfig) -> tuple[Array, Array]:
    """Log-prob and entropy [R, T] of the targets, 0 where nothing is trained."""
    inputs = (micro["tokens"], micro["positions"], micro["segments"])
    hidden = qwen3.hidden_states(params, model, *inputs, config.compute, _replay(micro, model))
    head = qwen3.head_matrix(params, model)
    trained = micro["weights"] != 0
    return token_logprobs(
        hidden, head, micro["targets"], trained, config.temperature, config.logprob_chunk, config.compute
    )


def _replay(micro: Arrays, model: ModelConfig) -> Array | None:
    """The experts to replay, int16 [L, R, T, k]; None when the batch has none.

    A number that no expert has makes the router choose.  Raises ValueError for the routes of another model.
    """
    if "routes" not in micro:
        return None
    layers, k = model.num_layers, model.experts_per_token
    if not model.is_moe or micro["routes"].shape[-1] != layers * k:
        raise ValueError(
            f"the engine reports {micro['routes'].shape[-1]} experts for a token, this model has {k} in each "
            f"of {layers} layers: it is another model, turn routing replay off"
        )
    routes_RxTxLxk = micro["routes"].reshape(*micro["tokens"].shape, layers, k)
    known = jnp.all((routes_RxTxLxk >= 0) & (routes_RxTxLxk < model.num_experts), -1, keepdims=True)
    return jnp.moveaxis(jnp.where(known, routes_RxTxLxk, -1), 2, 0)


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
        # Without the barrier, XLA for TPU tries to move the sum of an untied head's gradient over the devices
        # out of the loop, and fails (RET_CHECK in while_loop_all_reduce_code_motion, libtpu 0.0.42).
        grads = lax.optimization_barrier(grads)
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
    """fp32 scalars by metric name; means are over the trained tokens, `sequence_...` over trained sequences."""
    sums = dict(statistics.sums)
    tokens, sequences = sums.pop("tokens"), sums.pop("sequences", jnp.zeros(()))
    sums.pop("weight")
    number = {k: sequences if k.startswith("sequence_") else tokens for k in sums}
    metrics = {k: v / jnp.maximum(number[k], 1.0) for k, v in sums.items()} | dict(statistics.maxima)
    metrics |= {"loss": loss, "grad_norm": norm, "tokens": tokens, "lr": lr, "skipped": ~good}
    return {f"learn/{k}": jnp.asarray(v, jnp.float32) for k, v in metrics.items()}


def train_step(
    state: TrainState, arrays: Arrays, micro_batches: Array, model: ModelConfig, config: LearnConfig, loss: str
) -> tuple[TrainState, Arrays]:
    """(new state, metrics) of one optimiser step for `loss` "policy" or "sft".

    One forward and backward pass over each micro-batch, and nothing else.
    """
    micro_loss = {"policy": policy_micro_loss, "sft": sft_micro_loss}[loss]

    def loss_fn(params: Params, micro: Arrays):
        return micro_loss(params, micro, model, config)

    mesh = config.compute.mesh
    pinned = None if mesh is None else qwen3.param_shardings(model, mesh)
    working = qwen3.working_copy(state.params, config.compute)
    grads, loss_sum, statistics = accumulate(loss_fn, working, arrays, micro_batches, pinned)
    lr = config.learning_rate(state.step)
    if config.moments == "host":
        near = dataclasses.replace(config, moments="float32")
        state = jax.device_put(state, state_shardings(pinned, state.params, near))
    state, norm, good = apply_gradients(state, grads, statistics.sums["weight"], config.optimizer())
    return state, step_metrics(loss_sum, norm, good, lr, statistics)


def compile_step(model: ModelConfig, config: LearnConfig, loss: str) -> jax.stages.Wrapped:
    """`train_step` jitted: (state, arrays, micro_batches) -> (state, metrics).

    The state is donated.  On a mesh, the new state has the shardings of the old one.
    """
    step = functools.partial(train_step, model=model, config=config, loss=loss)
    shardings = None
    if config.compute.mesh is not None:
        shardings = (jax.tree.map(lambda x: x.sharding, abstract_state(model, config)), None)
    return jax.jit(step, donate_argnums=0, out_shardings=shardings)


def make_train_step(
    model: ModelConfig, config: LearnConfig, loss: str
) -> Callable[[TrainState, TrainBatch], tuple[TrainState, Arrays]]:
    """The compiled step as (state, batch) -> (state, metrics); on a mesh the batch must be placed on it.

    The state passed in is donated and must not be used again.
    """
    compiled = compile_step(model, config, loss)

    def call(state: TrainState, batch: TrainBatch) -> tuple[TrainState, Arrays]:
        return compiled(state, batch_arrays(batch), np.int32(batch.micro_batches))

    return call


def trace_train_step(
    model: ModelConfig, config: LearnConfig, loss: str, shape: tuple[int, int, int], replay: bool = False
) -> jax.stages.Traced:
    """The step for batches [M, R, T] of `shape`, traced for the mesh of `config.compute`, without arrays.

    With `replay`, the batches have routes.  Its `jaxpr` can be read, and `lower().compile()` asks the compiler
    of the mesh's devices.
    """
    sharding = batch_sharding(config.compute.mesh, leading=1)
    floats = ("weights", "engine_logprobs", "advantages")
    arrays = {
        f.name: jax.ShapeDtypeStruct(shape, jnp.float32 if f.name in floats else jnp.int32, sharding=sharding)
        for f in dataclasses.fields(TrainBatch)
        if f.name not in ("micro_batches", "routes")
    }
    if replay:
        wide = (*shape, model.num_layers * model.experts_per_token)
        arrays["routes"] = jax.ShapeDtypeStruct(wide, jnp.int16, sharding=sharding)
    step = compile_step(model, config, loss)
    return step.trace(abstract_state(model, config), arrays, jax.ShapeDtypeStruct((), jnp.int32))


def batch_arrays(batch: TrainBatch) -> Arrays:
    """The arrays of a batch by name, [M, R, T] and routes, if any, [M, R, T, L * k]."""
    fields = (f.name for f in dataclasses.fields(batch) if f.name != "micro_batches")
    arrays = {name: getattr(batch, name) for name in fields}
    return arrays if batch.routes is not None else {k: v for k, v in arrays.items() if k != "routes"}


def place(batch: TrainBatch, mesh: Mesh) -> TrainBatch:
    """The batch with its arrays on the mesh, the tokens of its rows in `context_order`.

    Every host passes the same batch and uploads the parts of its own devices.
    """
    sharding = batch_sharding(mesh, leading=1)
    order = context_order(batch.tokens.shape[2], mesh.shape["context"])

    def put(x: np.ndarray) -> Array:
        x = x if mesh.shape["context"] == 1 else x[:, :, order]
        return jax.make_array_from_callback(x.shape, sharding, lambda where: x[where])

    return dataclasses.replace(batch, **{k: put(v) for k, v in batch_arrays(batch).items()})
