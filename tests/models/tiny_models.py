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


def shapes_of(config):
    """The tree of `init_params` as shapes and dtypes, without compiling it."""
    return jax.eval_shape(lambda: init_params(config, jax.random.key(0)))


@functools.cache
def params_of(config):
    """NumPy parameters with lively norms: at the initial 1, errors in them would hide."""
    rng = np.random.default_rng(3)

    def draw(path, leaf):
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        return 1 + 0.2 * noise if path[-1].key == "scale" else 0.3 * noise

    return jax.tree_util.tree_map_with_path(draw, shapes_of(config))


def row(ids, length=None):
    """tokens, positions, segments [1, S] of one segment, right-padded to `length`."""
    pad = (length or len(ids)) - len(ids)
    n = len(ids)
    arrays = (np.pad(ids, (0, pad)), np.pad(np.arange(n), (0, pad)), np.pad(np.ones(n, int), (0, pad)))
    return tuple(np.asarray(a, np.int32)[None] for a in arrays)
