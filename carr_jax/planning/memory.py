"""Memory of one chip during a training step, by what it holds."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import jax

from carr_jax.models.config import ModelConfig

GIB = 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
# The two ways in which XLA says that a program is too large for a chip.  Despite its wording, the number of the
# first includes the arguments.
_TOO_LARGE = (
    re.compile(rf"HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)


@dataclass(frozen=True)
class Memory:
    """GiB of one chip.  `peak` is what the compiler says (or an estimate); the parts add up to it.

    weights      fp32 master weights            gradients    their fp32 sums over the micro-batches
    optimizer    AdamW's moments                activations  kept by the forward for the backward pass
    batch        tokens and what goes with them temporaries  the rest: gathered weights, one layer, logits, ...

    `host` is what lies in the memory of the host instead, for one chip.
    """

    weights: float
    optimizer: float
    batch: float
    gradients: float
    activations: float
    temporaries: float
    host: float
    limit: float

    @property
    def arguments(self) -> float:
        """What is there before the step begins."""
        return self.weights + self.optimizer + self.batch

    @property
    def peak(self) -> float:
        return self.arguments + self.gradients + self.activations + self.temporaries

    @property
    def fits(self) -> bool:
        return self.peak <= self.limit

    def with_peak(self, peak: float) -> Memory:
        """With the temporaries that explain `peak`.

        When the other parts alone are more, they do not all live at the same time: activations are then what
        is left.
        """
        rest = peak - (self.peak - self.temporaries)
        if rest >= 0:
            return dataclasses.replace(self, temporaries=rest)
        return dataclasses.replace(self, temporaries=0.0, activations=self.activations + rest)


def bytes_per_chip(tree: Any) -> tuple[int, int]:
    """(on the chip, on the host) bytes of one device's parts of a tree of sharded arrays or their shapes."""
    chip = host = 0
    for leaf in jax.tree.leaves(tree):
        size = leaf.dtype.itemsize
        for n in leaf.sharding.shard_shape(leaf.shape):
            size *= n
        on_host = "host" in (leaf.sharding.memory_kind or "")
        chip, host = (chip, host + size) if on_host else (chip + size, host)
    return chip, host


def out_of_memory(message: str) -> tuple[float, float] | None:
    """(needed, available) GiB that a compiler's error states; None for any other error."""
    for pattern in _TOO_LARGE:
        if found := pattern.search(message):
            needed, needed_unit, there, there_unit = found.groups()
            return float(needed) * _UNITS[needed_unit] / GIB, float(there) * _UNITS[there_unit] / GIB
    return None


def compiled_peak(compiled: jax.stages.Compiled, kind: str) -> float:
    """GiB of one device at the worst moment, arguments included; `kind` is that of the chip, tpu or cpu.

    A TPU's compiler states it (its `temp_size_in_bytes` is too high) together with what lies on the host.  On a
    CPU the stated peak leaves the temporaries out, so there it is arguments, results and temporaries.
    """
    stated = compiled.memory_analysis()
    if kind == "tpu":
        on_host = stated.host_argument_size_in_bytes + stated.host_temp_size_in_bytes
        return (stated.peak_memory_in_bytes - on_host) / GIB
    results = stated.output_size_in_bytes - stated.alias_size_in_bytes
    return (stated.argument_size_in_bytes + results + stated.temp_size_in_bytes) / GIB


def estimated_temporaries(
    model: ModelConfig, tokens: int, row_tokens: int, chunk: int, item: int, tensor: int
) -> float:
    """GiB that one chip needs beside state and kept activations, where no compiler can be asked.

    The larger of the two busiest moments: a layer's backward pass (its values and their gradients, two layers'
    gathered weights, their gradient) and a chunk of the vocabulary head.  `tokens` are a chip's, `row_tokens`
    those of its whole rows, `item` the bytes of the compute type.
    """
    width, heads, kv = model.d_model, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    if model.is_moe:
        inner = model.experts_per_token * (3 * model.d_ff_expert + 2 * width)
        weights = 3 * model.num_experts * model.d_ff_expert * width
    else:
        inner, weights = 3 * model.d_ff, 3 * model.d_ff * width
    weights += 2 * width * (heads + kv)
    values = tokens * (4 * width + (2 * heads + 2 * kv + inner) / tensor)
    layer = 2 * item * values + 4 * tokens * heads / tensor + 4 * item * row_tokens * kv / tensor
    layer += weights / tensor * (2 * item + 4)
    head = model.vocab_size / tensor * (min(chunk, tokens) * 3 * 4 + width * (item + 4))
    return max(layer, head) / GIB
