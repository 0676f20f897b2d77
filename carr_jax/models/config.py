"""The shape of a Qwen3 policy, and how it is read from a Hugging Face config.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carr_jax.records import InputError


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the parameter tree and the forward pass of a dense or MoE Qwen3.

    `head_dim` is independent of `d_model / num_heads`.  `num_experts` 0 means a dense model, which uses `d_ff`;
    otherwise every layer has experts of width `d_ff_expert` and `d_ff` must be 0.  `rope_theta` is the rotary
    base (dimensionless) and must come from the checkpoint, never from a preset of a similar name.

    Raises ValueError, naming the field, for values that no Qwen3 can have.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    d_ff: int
    rope_theta: float
    rms_eps: float = 1e-6
    tie_embeddings: bool = True
    num_experts: int = 0
    experts_per_token: int = 0
    d_ff_expert: int = 0
    norm_topk_prob: bool = False
    max_position: int = 2048

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "max_position"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary halves, got {self.head_dim}")
        if self.is_moe:
            _check_experts(self)
        elif self.d_ff < 1 or self.experts_per_token or self.d_ff_expert or self.norm_topk_prob:
            raise ValueError("a dense model needs d_ff and no expert fields (num_experts is 0)")

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0


def _check_experts(config: ModelConfig) -> None:
    if config.d_ff:
        raise ValueError("d_ff must be 0 in a mixture of experts: no layer is dense, so nothing would read it")
    if not 1 <= config.experts_per_token <= config.num_experts:
        raise ValueError(
            f"experts_per_token must be in 1..{config.num_experts}, got {config.experts_per_token}"
        )
    if config.d_ff_expert < 1:
        raise ValueError(f"d_ff_expert must be at least 1, got {config.d_ff_expert}")


_TINY = ModelConfig(
    vocab_size=1536,  # replaced by the tokenizer's: dataclasses.replace(PRESETS["tiny"], vocab_size=n)
    d_model=128,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    d_ff=384,
    rope_theta=1_000_000.0,  # slow rotations leave room to match names over a thousand tokens
)

PRESETS = {
    "tiny": _TINY,
    "tiny_moe": dataclasses.replace(
        _TINY,
        d_ff=0,
        tie_embeddings=False,
        num_experts=8,
        experts_per_token=2,
        d_ff_expert=128,
        norm_topk_prob=True,
    ),
}

# --------------------------------------------------------------------------- Hugging Face config.json

_SAME = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "rms_norm_eps": "rms_eps",
    "tie_word_embeddings": "tie_embeddings",
    "max_position_embeddings": "max_position",
}
_DENSE = {"intermediate_size": "d_ff"}
_MOE = {
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "d_ff_expert",
    "norm_topk_prob": "norm_topk_prob",
}
_EXPERT_COUNT = ("num_experts", "num_local_experts")  # 4.x and 5.x names of the same thing
_ROPE = ("rope_theta", "rope_parameters", "rope_scaling")

# The only accepted values of fields that would change the forward pass.
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attention_dropout": (0, 0.0),
    "use_sliding_window": (False,),
    "mlp_only_layers": ([], None),
    "decoder_sparse_step": (1,),
    "quantization_config": (None,),
    "pruned_heads": ({}, None),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "chunk_size_feed_forward": (0,),
    "tie_encoder_decoder": (False,),
}

# Fields without an effect on the forward pass of the policy: special tokens, how the original was trained,
# bookkeeping of transformers, and windows that use_sliding_window switches off.
_IGNORED = {
    *("architectures", "auto_map", "model_type", "_name_or_path", "name_or_path", "transformers_version"),
    *(
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "decoder_start_token_id",
        "tokenizer_class",
    ),
    *("dtype", "torch_dtype", "initializer_range", "router_aux_loss_coef", "output_router_logits", "use_cache"),
    *("max_window_layers", "sliding_window", "_attn_implementation", "attn_implementation", "torchscript"),
    *("output_attentions", "output_hidden_states", "return_dict", "problem_type", "id2label", "label2id"),
    *("finetuning_task", "prefix", "task_specific_params", "use_bfloat16", "tf_legacy_loss"),
}


def from_hf_config(source: str | Path | Mapping[str, Any]) -> ModelConfig:
    """Read a Qwen3 or Qwen3-MoE config: a dict, a config.json, or the folder that holds one.

    Both dialects of transformers are read: `rope_theta` or `rope_parameters.rope_theta`, `num_experts` or
    `num_local_experts`.  Raises InputError that names the field for a value this model does not implement,
    for a missing field, and for a field that is not known (an unread field is a silent bug).
    """
    hf = _load(source)
    moe = _choose(hf, "model_type", ("qwen3", "qwen3_moe")) == "qwen3_moe"
    names = _SAME | (_MOE if moe else _DENSE)
    known = set(names) | set(_DENSE) | set(_FIXED) | set(_ROPE) | {"layer_types"} | _IGNORED
    known |= set(_EXPERT_COUNT) if moe else set()
    if unknown := sorted(set(hf) - known):
        raise InputError(f"config.json has fields this model does not know: {', '.join(unknown)}")
    for field, accepted in _FIXED.items():
        if field in hf:
            _choose(hf, field, accepted)
    _check_layer_types(hf)
    if hf.get("head_dim") is None:  # what transformers does for a Qwen3-MoE config without the field
        hf = {**hf, "head_dim": _require(hf, "hidden_size") // _require(hf, "num_attention_heads")}
    values = {ours: _require(hf, theirs) for theirs, ours in names.items()}
    if moe:
        values |= {"num_experts": _only(hf, _EXPERT_COUNT), "d_ff": 0}
    return ModelConfig(rope_theta=_rope_theta(hf), **values)


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """Inverse of `from_hf_config`, in a form that transformers 4 and 5 (and SGLang) read."""
    names = _SAME | (_MOE if config.is_moe else _DENSE)
    values = {theirs: getattr(config, ours) for theirs, ours in names.items()}
    if config.is_moe:
        # intermediate_size is of dense layers, which there are none; the readers want a number all the same.
        values |= {"num_experts": config.num_experts, "intermediate_size": config.d_ff_expert}
        values |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    return {
        "architectures": ["Qwen3MoeForCausalLM" if config.is_moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if config.is_moe else "qwen3",
        **values,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
    }


def _load(source: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    return json.loads((path / "config.json" if path.is_dir() else path).read_text())


def _require(hf: Mapping[str, Any], field: str) -> Any:
    if hf.get(field) is None:
        raise InputError(f"config.json has no value for {field}")
    return hf[field]


def _choose(hf: Mapping[str, Any], field: str, accepted: tuple[Any, ...]) -> Any:
    value = hf.get(field)
    if value not in accepted:
        raise InputError(f"config.json: {field} = {value!r} is not supported; accepted: {accepted}")
    return value


def _only(hf: Mapping[str, Any], fields: tuple[str, ...]) -> Any:
    """The one value that the given spellings of a field agree on."""
    values = {hf[f] for f in fields if hf.get(f) is not None}
    if len(values) != 1:
        raise InputError(f"config.json must give one value for {' / '.join(fields)}, got {sorted(values)}")
    return values.pop()


def _check_layer_types(hf: Mapping[str, Any]) -> None:
    if odd := sorted(set(hf.get("layer_types") or ()) - {"full_attention"}):
        raise InputError(f"config.json: layer_types holds {odd}; only full_attention is supported")


def _rope_theta(hf: Mapping[str, Any]) -> float:
    """The rotary base from either dialect; any scaled variant of RoPE is an error."""
    thetas = {hf["rope_theta"]} if hf.get("rope_theta") is not None else set()
    for field in ("rope_parameters", "rope_scaling"):
        rope = dict(hf.get(field) or {})
        kinds = {rope.pop(key) for key in ("rope_type", "type") if key in rope}
        if kinds - {"default"}:
            raise InputError(f"config.json: {field}.rope_type = {sorted(kinds)} is not supported; only default")
        if "rope_theta" in rope:
            thetas.add(rope.pop("rope_theta"))
        if rope:
            raise InputError(f"config.json: {field} has fields this model does not know: {sorted(rope)}")
    if len(thetas) != 1:
        raise InputError(f"config.json must give one rope_theta, got {sorted(thetas)}")
    return float(thetas.pop())
