"""What to change when a step does not fit its chips, with roughly how much each change frees."""

from __future__ import annotations

import jax.numpy as jnp
from ml_collections import ConfigDict

from carr_jax.planning.memory import GIB, Memory
from carr_jax.planning.step import Step
from carr_jax.sharding import row_shards

_SMALL_CHUNK = 1024  # tokens whose logits are held at once, where less no longer helps


def knobs(config: ConfigDict, step: Step, memory: Memory) -> tuple[str, ...]:
    """Changes to the configuration, the one that frees most first, each as one line."""
    found = [*_recomputation(config, step, memory), *_state(config, memory), *_layout(config, step, memory)]
    found = [(gib, text) for gib, text in found if gib > 0.05]
    return tuple(f"{text}: about {gib:.1f} GiB less" for gib, text in sorted(found, key=lambda x: -x[0]))


def _recomputation(config: ConfigDict, step: Step, memory: Memory) -> list[tuple[float, str]]:
    """Keep less for the backward pass, or keep it on the host."""
    model, remat = step.model, config.model.remat
    each = model.num_layers * step.tokens * jnp.dtype(config.model.dtype).itemsize / step.mesh.shape["tensor"]
    inputs, attention = each * model.d_model / GIB, each * model.num_heads * model.head_dim / GIB
    found = []
    if remat == "products":
        found.append((memory.activations - inputs - attention, "config.model.remat=attention"))
    if remat in ("products", "attention"):
        found.append((memory.activations - inputs, "config.model.remat=full (attention is computed again)"))
    if remat != "offload":
        found.append((inputs, "config.model.remat=offload (inputs of the layers into host memory)"))
    return found


def _state(config: ConfigDict, memory: Memory) -> list[tuple[float, str]]:
    """Store less of the state on each chip."""
    found = [((memory.arguments + memory.gradients - memory.batch) / 2, "twice as many chips")]
    if config.learn.moments != "host":
        found.append((memory.optimizer, "config.learn.moments=host"))
    if config.learn.moments == "float32":
        found.append((memory.optimizer / 2, "config.learn.moments=bfloat16"))
    return found


def _layout(config: ConfigDict, step: Step, memory: Memory) -> list[tuple[float, str]]:
    """Give each chip fewer tokens at a time."""
    moving = memory.activations + memory.temporaries
    shards, context = row_shards(step.mesh), step.mesh.shape["context"]
    each = step.batch_shape[1] // shards
    found = []
    if each > 1:
        found.append((moving * (1 - 1 / each), "config.learn.rows=0 (one row of each chip at a time)"))
    elif shards % 2 == 0 and step.batch_shape[2] % (4 * context) == 0:
        found.append((moving / 2, f"config.mesh.context={2 * context} (each row on twice as many chips)"))
    spare = min(config.learn.logprob_chunk, step.tokens) - _SMALL_CHUNK
    logits = 2 * 4 * spare * step.model.vocab_size / step.mesh.shape["tensor"] / GIB
    found.append((min(logits, memory.temporaries), f"config.learn.logprob_chunk={_SMALL_CHUNK}"))
    return found
