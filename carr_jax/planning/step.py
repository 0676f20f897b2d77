"""The training step of a configuration, traced for devices that need not exist.

The only file of this room that knows the learner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from carr_jax.learner import learn_config, rows_of
from carr_jax.learning.step import TrainState, abstract_state, trace_train_step
from carr_jax.models.attention import context_order
from carr_jax.models.blockwise import block_size
from carr_jax.models.config import PRESETS, ModelConfig, from_hf_config
from carr_jax.models.grouped import tile_size
from carr_jax.models.splash import BLOCK, backward_keys, heads_at_once
from carr_jax.planning.program import Unseen
from carr_jax.sharding import make_mesh, row_shards


@dataclass(frozen=True)
class Step:
    """A traced optimiser step over batches [M, R, T], with what a plan must know about it.

    `rows` are the trajectories of a step, each a whole row: the worst case.  `tokens` are those of one device
    in one micro-batch, `row_tokens` those of the whole rows that it works on.  `source` says where the model's
    shape was read, `loss` is policy or sft.
    """

    model: ModelConfig
    source: str
    loss: str
    mesh: Mesh
    rows: int
    batch_shape: tuple[int, int, int]
    state: TrainState
    traced: jax.stages.Traced
    unseen: Unseen

    @property
    def row_tokens(self) -> int:
        return self.batch_shape[1] * self.batch_shape[2] // row_shards(self.mesh)

    @property
    def tokens(self) -> int:
        return self.row_tokens // self.mesh.shape["context"]


def trace(config: ConfigDict, devices: Sequence[jax.Device], platform: str) -> Step:
    """Traces the step that `config` trains with, on the mesh that it has over `devices`; allocates nothing.

    `platform` (tpu, gpu, cpu) is what the devices stand for: GPUs are planned on those of a CPU.

    Raises InputError for what does not fit the devices or the model.
    """
    model, source = model_shape(config)
    mesh = make_mesh(config.mesh, devices)
    learn = learn_config(config, 1, mesh, platform)
    loss = "policy" if "rollout" in config else "sft"
    rows = config.rollout.prompts * config.rollout.group_size if loss == "policy" else config.sft.batch
    together = rows_of(config, mesh)
    shape = (-(-rows // together), together, config.learn.row_length)
    traced = trace_train_step(model, learn, loss, shape)
    state = abstract_state(model, learn)
    return Step(model, source, loss, mesh, rows, shape, state, traced, unseen(config, model, mesh, shape))


def model_shape(config: ConfigDict) -> tuple[ModelConfig, str]:
    """(shape, where it was read): the policy's own config.json, else `model.hf_config`, else the preset."""
    for place in (config.model.policy, config.model.hf_config):
        if place and Path(place).exists():
            return from_hf_config(place), str(place)
    model = dataclasses.replace(PRESETS[config.model.preset], vocab_size=config.model.vocab_size)
    return model, f"preset {config.model.preset}"


def unseen(config: ConfigDict, model: ModelConfig, mesh: Mesh, shape: tuple[int, int, int]) -> Unseen:
    """How often the loops of one device run in a full micro-batch, and what its attention kernels compute.

    Blocks that causality hides are skipped, those that it cuts are computed whole.
    """
    micro_batches, together, length = shape
    parts = mesh.shape["context"]
    rows = together // row_shards(mesh)
    tokens = rows * length // parts
    own_experts = max(model.num_experts // mesh.shape["expert"], 1)
    routed = tokens * max(model.experts_per_token, 1)
    block = block_size(length)
    seen = seen_blocks(length, parts, block, block)

    own_heads = (model.num_heads // mesh.shape["tensor"], model.num_kv_heads // mesh.shape["tensor"])
    heads = heads_at_once(length, parts, *own_heads, model.head_dim)

    def products(count: int, keys: int) -> float:
        """FLOPs of so many products of queries with keys, in blocks, for a device's rows and a call's heads."""
        queries = min(BLOCK, length // parts)
        pairs = seen_blocks(length, parts, queries, keys) * queries * keys
        return count * rows * pairs * 2 * heads * model.head_dim

    return Unseen(
        trips={
            "blockwise_forward": seen / -(-(length // parts) // block),  # of its keys, for a block of queries
            "blockwise_backward": seen / -(-length // block),  # of its queries, for a block of keys
            "moe": routed / mesh.shape["expert"] / tile_size(routed, own_experts),
            "jvp(": -(-tokens // min(config.learn.logprob_chunk, tokens)),  # of the vocabulary head
            "": micro_batches,
        },
        kernels={  # of splash: two products forward, five in the fused backward pass
            "splash_mha_fwd": products(2, min(BLOCK, length)),
            "splash_mha_dkv": products(5, backward_keys(length)),
        },
    )


def seen_blocks(length: int, parts: int, queries: int, keys: int) -> float:
    """Blocks of `queries` x `keys` tokens that causality does not hide, of a row's part on one device.

    The row is cut into `parts`, as `context_order` does; the number is the mean over the parts.
    """
    own = context_order(length, parts).reshape(parts, -1)
    last = np.pad(own, ((0, 0), (0, -own.shape[1] % queries))).reshape(parts, -1, queries).max(-1)
    return float((last // keys + 1).sum(1).mean())
