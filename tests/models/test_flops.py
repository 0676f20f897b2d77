"""FLOPs and parameters of a model against hand values and against published figures of the real ones."""

import math
from pathlib import Path

import jax
import pytest

from carr_jax.models.config import ModelConfig, from_hf_config
from carr_jax.models.flops import forward_flops, parameter_count, training_flops, visible_pairs
from carr_jax.models.qwen3 import param_shapes

ARCHITECTURES = Path(__file__).parents[2] / "configs" / "architectures"
DENSE = ModelConfig(
    vocab_size=11, d_model=6, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=5, rope_theta=1e4
)
MOE = ModelConfig(
    vocab_size=11, d_model=6, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8, d_ff=0, rope_theta=1e4,
    tie_embeddings=False, num_experts=7, experts_per_token=2, d_ff_expert=5, norm_topk_prob=True,
)  # fmt: skip


def test_a_small_dense_model_by_hand():
    flops = forward_flops(DENSE, [4, 2])
    assert flops.projections == 2 * 6 * 3 * (6 * 32 + 2 * 6 * 16 + 32 * 6)  # 6 tokens, 3 layers: q, k and v, o
    assert flops.mlp == 2 * 6 * 3 * (3 * 6 * 5)
    assert flops.router == 0
    assert flops.head == 2 * 6 * 6 * 11
    assert flops.attention == 3 * (10 + 3) * 2 * (2 * 4 * 8)  # 13 pairs, two products over 4 heads of 8
    assert training_flops(DENSE, [4, 2]) == 3 * flops.total


def test_a_mixture_counts_the_chosen_experts_and_its_router():
    dense, moe = forward_flops(DENSE, [5]), forward_flops(MOE, [5])
    assert moe.mlp == 2 * dense.mlp
    assert moe.router == 2 * 5 * 3 * 6 * 7
    assert (moe.projections, moe.head, moe.attention) == (dense.projections, dense.head, dense.attention)


def test_visible_pairs_of_packed_sequences():
    assert visible_pairs([1, 3]) == 1 + 6
    assert visible_pairs([]) == 0


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_parameters_are_those_of_the_model(model):
    assert parameter_count(model) == sum(math.prod(x.shape) for x in jax.tree.leaves(param_shapes(model)))


REAL = {  # GFLOP of one token at 65,536 tokens: matmuls, head, attention; billions of parameters
    "qwen3_4b": (7.27, 0.78, 19.3, 4.02),
    "qwen3_30b_a3b": (5.46, 0.62, 25.8, 30.5),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_models(name):
    length = 65_536
    model = from_hf_config(ARCHITECTURES / f"{name}.json")
    flops = forward_flops(model, [length])
    parts = (flops.matmuls, flops.head, flops.attention)
    found = [x / length / 1e9 for x in parts] + [parameter_count(model) / 1e9]
    assert found == pytest.approx(REAL[name], rel=4e-3)


def test_the_shipped_architectures():
    dense, moe = (from_hf_config(ARCHITECTURES / f"{name}.json") for name in REAL)
    assert dense == ModelConfig(
        vocab_size=151936, d_model=2560, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128, d_ff=9728,
        rope_theta=5e6, rms_eps=1e-6, tie_embeddings=True, max_position=262144,
    )  # fmt: skip
    assert moe == ModelConfig(
        vocab_size=151936, d_model=2048, num_layers=48, num_heads=32, num_kv_heads=4, head_dim=128, d_ff=0,
        rope_theta=1e7, rms_eps=1e-6, tie_embeddings=False, num_experts=128, experts_per_token=8,
        d_ff_expert=768, norm_topk_prob=True, max_position=262144,
    )  # fmt: skip
