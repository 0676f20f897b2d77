"""What packing wastes on long-tailed trajectories: `python benchmarks/packing.py` (ten seconds, any machine).

Lengths are log-normal between 2,000 and 65,536 tokens with mean 20,000; rows hold 65,536 tokens, each shard has
one row of a micro-batch; costs are those of Qwen3-4B.

    padding    padding in the rows that are needed, in per cent: the packer's own waste
    idle       row slots of the micro-batches beyond the rows needed, in per cent: they come from rows that are
               no multiple of the shards
    imbalance  FLOPs of all trajectories of the costliest shard, over the mean of the shards
    slowest    time of a step in which shards wait for the slowest in each micro-batch, over a step without
               waiting (matrix products over all positions, attention without padding)
    bound      what no layout can beat: the longest trajectory takes its time, whatever the others do
"""

import time

import numpy as np

from carr_jax.learning.batch import Example, pack, packing
from carr_jax.learning.layout import fill_rows, model_cost
from carr_jax.models.config import ModelConfig

ROW = 65_536
COST = model_cost(ModelConfig(151_936, 2560, 36, 32, 8, 128, 9728, 5e6))
CASES = ((128, 16), (128, 8), (128, 4), (1280, 16))  # trajectories, shards
SEEDS = range(5)


def draw(seed: int, count: int) -> list[Example]:
    lengths = np.clip(np.random.default_rng(seed).lognormal(9.683, 0.7, count), 2_000, ROW).astype(int)
    return [
        Example(np.zeros(n, np.int32), np.ones(n, np.int8), np.zeros(n, np.float32), 1.0, i)
        for i, n in enumerate(lengths)
    ]


def least_slowest(lengths: list[int], shards: int, micro_batches: int) -> float:
    """A lower bound of `slowest`.

    Some micro-batch takes as long as the longest trajectory, and has at most the attention of the longest
    trajectories that fill it; the attention of the others is shared evenly at best.
    """
    room, inside = shards * ROW, 0.0
    for n in sorted(lengths, reverse=True):
        inside += n * min(n, room)
        room -= min(n, room)
    even = sum(n * n for n in lengths) / shards
    best = even + max(0.0, max(lengths) ** 2 - inside / shards)
    matmuls = micro_batches * COST.linear * ROW
    return (matmuls + COST.quadratic * best) / (matmuls + COST.quadratic * even)


def measured(examples: list[Example], shards: int) -> tuple[list[float], float]:
    """(row of the table, CPU seconds of `pack`)."""
    lengths = [e.ids.size for e in examples]
    filled = -(-len(fill_rows(lengths, ROW)) // shards)
    start = time.process_time()
    batch = pack(examples, ROW, shards, filled, "global_tokens", shards, COST)
    seconds = time.process_time() - start
    found = packing(batch, shards, COST)
    bound = least_slowest(lengths, shards, filled)
    return [
        100 * found.padding,
        100 * found.idle_rows,
        found.imbalance,
        1 / (1 - found.waiting),
        bound,
    ], seconds


def main() -> None:
    cpu = {}
    print(f"{'':34}{'padding':>9}{'idle':>9}{'imbalance':>11}{'slowest':>9}{'bound':>9}")
    for count, shards in CASES:
        rows = []
        for seed in SEEDS:
            row, seconds = measured(draw(seed, count), shards)
            rows.append(row)
            cpu.setdefault((count, shards), []).append(seconds)
            show(f"{count} trajectories, {shards} shards, seed {seed}", row)
        show("worst", np.max(rows, axis=0))
    # The fastest of the seeds: the kernel takes a varying time to hand out a gigabyte of fresh pages.
    once, tenfold = (min(cpu[count, 16]) for count in (128, 1280))
    print(f"CPU of pack, 1280 over 128 trajectories: {tenfold / once:.1f} ({once:.3f} s, {tenfold:.3f} s)")


def show(name: str, row: list[float]) -> None:
    print(f"{name:34}{row[0]:9.1f}{row[1]:9.1f}{row[2]:11.3f}{row[3]:9.3f}{row[4]:9.3f}")


if __name__ == "__main__":
    main()
