"""Models small enough to compile in a second, shared by the tests of models and rollout."""

import functools

import jax
import numpy as np

from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import init_params

DENSE = ModelConfig(
    vocab_size=61,
    d_model=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    d_ff=24,
    rope_theta=10_000.0,
    max_position=96,
)
MOE = ModelConfig(
    vocab_size=61,
    d_model=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    d_ff=0,
    rope_theta=10_000.0,
    tie_embeddings=False,
    num_experts=4,
    experts_per_token=2,
    d_ff_expert=12,
    norm_topk_prob=True,
    max_position=96,
)


@functools.cache
def params_of(config):
    """Random parameters with lively embeddings and norms: at init 0.02 and 1, errors would hide."""
    params = init_params(config, jax.random.key(3))
    params["embedding"] = params["embedding"] * 40
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(0)
    noisy = [x * (1 + 0.2 * rng.standard_normal(x.shape).astype(np.float32)) for x in leaves]
    return jax.tree.unflatten(tree, noisy)


def row(ids, length=None):
    """tokens, positions, segments [1, S] of one segment, right-padded to `length`."""
    pad = (length or len(ids)) - len(ids)
    n = len(ids)
    arrays = (np.pad(ids, (0, pad)), np.pad(np.arange(n), (0, pad)), np.pad(np.ones(n, int), (0, pad)))
    return tuple(np.asarray(a, np.int32)[None] for a in arrays)
