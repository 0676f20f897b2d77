"""Our side: one C-GRPO optimiser step of carr_jax on a small random Qwen3, fp32, one CPU device.

    python benchmarks/train_step.py --weights=DIR --shape=16x512 [--moe] [--micro=4] [--remat]

DIR is made when it is not there, so that all sides train the same weights.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import jax
import numpy as np

from carr_jax.learning.step import LearnConfig, init_state, make_train_step
from carr_jax.models.config import ModelConfig, from_hf_config
from carr_jax.models.qwen3 import init_params
from carr_jax.records import TrainBatch
from carr_jax.weights import load_params, save_params


def model_config(moe: bool, layers: int = common.LAYERS) -> ModelConfig:
    """The small Qwen3 of the benchmarks."""
    dense = dict(d_ff=common.MLP)
    experts = dict(
        d_ff=0,
        num_experts=common.EXPERTS,
        experts_per_token=common.EXPERTS_PER_TOKEN,
        d_ff_expert=common.EXPERT_MLP,
        norm_topk_prob=True,
    )
    return ModelConfig(
        vocab_size=common.VOCABULARY,
        d_model=common.WIDTH,
        num_layers=layers,
        num_heads=common.HEADS,
        num_kv_heads=common.KV_HEADS,
        head_dim=common.HEAD_DIM,
        rope_theta=common.ROPE_THETA,
        rms_eps=common.RMS_EPS,
        **(experts if moe else dense),
    )


def learn_config(remat: bool = False) -> LearnConfig:
    """The recipe, without the correction for an engine's rounding, which the other sides do not have."""
    names = ("lr", "b1", "b2", "weight_decay", "clip_norm")
    config = LearnConfig(
        **{name: common.ADAMW[name] for name in names},
        eps_low=common.CLIP_LOW,
        eps_high=common.CLIP_HIGH,
        ratio_correction="none",
    )
    if not remat:
        return config
    return dataclasses.replace(config, compute=dataclasses.replace(config.compute, remat="attention"))


def batch_of(work: common.Work, ids: np.ndarray, advantages: np.ndarray) -> TrainBatch:
    """The step's arrays [M, R, T]; what predicts a token of the completion is trained."""
    at = np.arange(work.tokens)
    weights = np.where((at >= work.prompt - 1) & (at < work.tokens - 1), 1 / work.trained, 0.0)
    arrays = dict(
        tokens=ids,
        targets=np.roll(ids, -1, axis=1),
        segments=np.ones_like(ids),
        positions=at.astype(np.int32),
        weights=weights.astype(np.float32),
        engine_logprobs=np.float32(-np.log(common.VOCABULARY)),
        advantages=advantages[:, None],
    )
    shape = (work.rows // work.micro, work.micro, work.tokens)
    arrays = {k: np.broadcast_to(v, ids.shape).reshape(shape) for k, v in arrays.items()}
    return TrainBatch(**arrays, micro_batches=shape[0])


def main() -> None:
    args = common.parser(__doc__).parse_args()
    work = common.work_of(args)
    if not args.weights.exists():
        model = model_config(work.moe)
        save_params(args.weights, init_params(model, jax.random.key(0)), model)
    model, config = from_hf_config(args.weights), learn_config(work.remat)
    state = init_state(load_params(args.weights, model), config)
    step = make_train_step(model, config, "policy")

    def run(ids: np.ndarray, advantages: np.ndarray) -> float:
        nonlocal state
        state, metrics = step(state, batch_of(work, ids, advantages))
        jax.block_until_ready((state, metrics))
        return float(metrics["learn/grad_norm"])

    common.report(common.measure("ours", work, args.steps, run) | {"jax": jax.__version__})


if __name__ == "__main__":
    main()
