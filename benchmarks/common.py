"""What the sides of a comparison share: the model's shape, the data, the clock.  NumPy only.

Each side runs in a process and an environment of its own, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4, 256, 4, 2, 64, 4096
MLP, EXPERTS, EXPERTS_PER_TOKEN, EXPERT_MLP = 768, 8, 2, 256
ROPE_THETA, RMS_EPS = 1_000_000.0, 1e-6
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
ADAMW = dict(lr=2e-6, b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.1, clip_norm=1.0)


@dataclasses.dataclass(frozen=True)
class Work:
    """One optimiser step: `rows` sequences of `tokens`, of which the first quarter is prompt.

    The rest, the completion, is trained.  `micro` rows pass through the model at a time.
    """

    rows: int
    tokens: int
    moe: bool
    micro: int
    remat: bool

    @property
    def prompt(self) -> int:
        return self.tokens // 4

    @property
    def trained(self) -> int:
        return self.rows * (self.tokens - self.prompt)


def parser(description: str) -> argparse.ArgumentParser:
    """The options of one side."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--shape", default="16x512", help="rows x tokens of one optimiser step")
    p.add_argument("--moe", action="store_true", help="8 experts, 2 per token, instead of the dense MLP")
    p.add_argument("--micro", type=int, default=0, help="rows of a micro-batch; 0 = all")
    p.add_argument("--remat", action="store_true", help="recompute layers in the backward pass")
    p.add_argument("--steps", type=int, default=3, help="timed steps, after one that compiles")
    p.add_argument("--weights", type=Path, required=True, help="Hugging Face folder of the model to train")
    return p


def work_of(args: argparse.Namespace) -> Work:
    rows, tokens = shape_of(args.shape)
    return Work(rows, tokens, args.moe, args.micro or rows, args.remat)


def shape_of(text: str) -> tuple[int, int]:
    """ "16x512" as (16, 512)."""
    rows, tokens = text.split("x")
    return int(rows), int(tokens)


def data(work: Work, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, int32 [rows, tokens], and an advantage for each row, float32 [rows]."""
    random = np.random.default_rng(step)
    ids = random.integers(3, VOCABULARY, (work.rows, work.tokens), dtype=np.int32)
    return ids, random.standard_normal(work.rows).astype(np.float32)


def measure(side: str, work: Work, steps: int, run: Callable[[np.ndarray, np.ndarray], float]) -> dict:
    """Times `run(ids, advantages)`, which does one whole step and returns the gradient norm, or NaN.

    Seconds are those of the CPU, over all threads: other jobs on the machine disturb them least.  Memory is the
    largest resident size of the process; `before` is what it was before the first step.
    """
    before = _memory("VmRSS")
    seconds, norms = [], []
    for step in range(steps + 1):
        ids, advantages = data(work, step)
        start = time.process_time()
        norms.append(run(ids, advantages))
        seconds.append(time.process_time() - start)
    first, rest = seconds[0], seconds[1:]
    return {
        "side": side,
        **dataclasses.asdict(work),
        "grad_norm": norms[0],
        "seconds": [round(s, 4) for s in rest],
        "min": round(min(rest), 4),
        "median": round(statistics.median(rest), 4),
        "first": round(first, 2),
        "before_mib": before,
        "peak_mib": _memory("VmHWM"),
    }


def report(row: dict) -> None:
    print(json.dumps(row), flush=True)


def _memory(field: str) -> int:
    """MiB, from Linux's own books: `ru_maxrss` would also count the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) // 1024
    raise RuntimeError(f"no {field} in /proc/self/status")
