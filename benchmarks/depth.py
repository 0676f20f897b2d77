"""Layers are scanned: does a deeper model compile as quickly, and does its step take no more than its work?

    python benchmarks/depth.py [--moe] [--shape=4x512]

Compares 4 with 16 layers of the small Qwen3 by CPU seconds.  The bars: compile time of 16 layers at most 1.2 of
4, step time at most 1.1 of the ratio of the work (FLOPs of the matrix products, forward).
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import common
import jax
import numpy as np
import train_step

from carr_jax.learning.step import batch_arrays, compile_step, init_state
from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import init_params

LAYERS = (4, 16)
COMPILE_BAR, STEP_BAR = 1.2, 1.1


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="4x512", help="rows x tokens of one optimiser step")
    p.add_argument("--moe", action="store_true")
    p.add_argument("--steps", type=int, default=3, help="timed steps")
    args = p.parse_args()
    rows, tokens = common.shape_of(args.shape)
    work = common.Work(rows, tokens, args.moe, rows, False)
    timed(work, 1, 1)  # the first compilation of a process also starts the compiler
    compiled, steps = zip(*(timed(work, layers, args.steps) for layers in LAYERS), strict=True)
    flops = [forward_flops(work, train_step.model_config(work.moe, layers)) for layers in LAYERS]
    print("| layers | compile s | step s | forward GFLOP |\n| --- | --- | --- | --- |")
    for row in zip(LAYERS, compiled, steps, flops, strict=True):
        print("| {} | {:.2f} | {:.3f} | {:.1f} |".format(*row[:3], row[3] / 1e9))
    growth = [b / a for a, b in (compiled, steps, flops)]
    print(f"\ncompile time x {growth[0]:.2f} (bar {COMPILE_BAR})")
    print(f"step time x {growth[1]:.2f}, work x {growth[2]:.2f}: {growth[1] / growth[2]:.2f} (bar {STEP_BAR})")
    sys.exit(growth[0] > COMPILE_BAR or growth[1] / growth[2] > STEP_BAR)


def timed(work: common.Work, layers: int, steps: int) -> tuple[float, float]:
    """CPU seconds of tracing and compiling the step, and of the quickest of `steps` runs."""
    model, config = train_step.model_config(work.moe, layers), train_step.learn_config()
    state = init_state(init_params(model, jax.random.key(0)), config)
    batch = train_step.batch_of(work, *common.data(work, 0))
    inputs = batch_arrays(batch), np.int32(batch.micro_batches)
    start = time.process_time()
    step = compile_step(model, config, "policy").lower(state, *inputs).compile()
    compiled = time.process_time() - start
    seconds = []
    for _ in range(steps):
        start = time.process_time()
        state, metrics = step(state, *inputs)
        jax.block_until_ready((state, metrics))
        seconds.append(time.process_time() - start)
    return compiled, min(seconds)


def forward_flops(work: common.Work, c: ModelConfig) -> float:
    """Of the matrix products: projections, causal attention, MLP or experts, the head where it is needed."""
    tokens = work.rows * work.tokens
    projections = c.d_model * c.head_dim * 2 * (c.num_heads + c.num_kv_heads)
    attention = c.num_heads * c.head_dim * work.tokens  # half of two products
    mlp = 3 * c.d_model * (c.experts_per_token * c.d_ff_expert if c.is_moe else c.d_ff)
    layer = 2 * tokens * (projections + attention + mlp)
    return c.num_layers * layer + 2 * work.trained * c.d_model * c.vocab_size


if __name__ == "__main__":
    main()
