"""FLOPs of a Qwen3, counted by hand from its shape: what the mathematics needs, whatever the program does.

A multiplication and an addition are two FLOPs.  Only matrix products count (norms, softmax and rotations are
below one per cent), attention only over pairs that a causal mask leaves visible, and no recomputation.
Training is three times the forward pass: the backward pass has two products for each one of the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from carr_jax.models.config import ModelConfig

BACKWARD = 2  # products of the backward pass for each product of the forward pass


@dataclass(frozen=True)
class ForwardFlops:
    """FLOPs of a forward pass by part; of one token, or of many."""

    projections: int  # q, k, v and o
    mlp: int  # the dense MLP, or the experts that were chosen
    router: int
    head: int
    attention: int  # scores and values

    @property
    def matmuls(self) -> int:
        """What every token costs in the layers, whatever its context."""
        return self.projections + self.mlp + self.router

    @property
    def total(self) -> int:
        return self.matmuls + self.head + self.attention


def forward_flops(model: ModelConfig, lengths: Iterable[int]) -> ForwardFlops:
    """FLOPs of one forward pass over sequences of these lengths (tokens), each seeing only itself."""
    lengths = list(lengths)
    tokens, layers = sum(lengths), model.num_layers
    width, heads = model.d_model, model.num_heads * model.head_dim
    qkvo = width * (heads + 2 * model.num_kv_heads * model.head_dim) + heads * width
    experts = model.experts_per_token * model.d_ff_expert if model.is_moe else model.d_ff
    return ForwardFlops(
        projections=2 * tokens * layers * qkvo,
        mlp=2 * tokens * layers * 3 * width * experts,
        router=2 * tokens * layers * width * model.num_experts,
        head=2 * tokens * width * model.vocab_size,
        attention=layers * visible_pairs(lengths) * pair_flops(model),
    )


def training_flops(model: ModelConfig, lengths: Iterable[int]) -> int:
    """Model FLOPs of one optimiser step over these sequences: the denominator of every utilisation (MFU)."""
    return (1 + BACKWARD) * forward_flops(model, lengths).total


def visible_pairs(lengths: Iterable[int]) -> int:
    """Pairs (query, key) that causal attention computes: n(n+1)/2 for a sequence of n tokens."""
    return sum(n * (n + 1) // 2 for n in lengths)


def pair_flops(model: ModelConfig) -> int:
    """FLOPs of one visible pair in one layer, forward: q k^T and the sum over values, for every query head."""
    return 4 * model.num_heads * model.head_dim


def parameter_count(model: ModelConfig) -> int:
    """Number of parameters, norms included."""
    width, heads, kv = model.d_model, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    mlp = 3 * width * (model.num_experts * model.d_ff_expert if model.is_moe else model.d_ff)
    layer = 2 * width * (heads + kv) + mlp + width * model.num_experts + 2 * width + 2 * model.head_dim
    vocabulary = model.vocab_size * width * (1 if model.tie_embeddings else 2)
    return model.num_layers * layer + vocabulary + width
