import dataclasses
import json

import pytest

from carr_jax.models.config import PRESETS, ModelConfig, from_hf_config

DENSE_HF = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 262144,
    "max_window_layers": 36,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 5_000_000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MOE_HF = DENSE_HF | {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "tie_word_embeddings": False,
}


def without(hf, *fields):
    return {k: v for k, v in hf.items() if k not in fields}


def test_dense_config_is_read_field_by_field():
    assert from_hf_config(DENSE_HF) == ModelConfig(
        vocab_size=151936,
        d_model=2560,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        d_ff=9728,
        rope_theta=5e6,
        rms_eps=1e-6,
        tie_embeddings=True,
        max_position=262144,
    )


def test_moe_config_and_both_dialects_agree():
    config = from_hf_config(MOE_HF)
    assert (config.num_experts, config.experts_per_token, config.d_ff_expert) == (128, 8, 768)
    assert config.norm_topk_prob and not config.tie_embeddings and config.d_ff == 0
    newer = without(MOE_HF, "rope_theta", "rope_scaling", "num_experts") | {
        "rope_parameters": {"rope_theta": 5_000_000, "rope_type": "default"},
        "num_local_experts": 128,
        "dtype": "bfloat16",
        "layer_types": ["full_attention"] * 36,
    }
    assert from_hf_config(newer) == config


def test_reads_a_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE_HF))
    assert from_hf_config(tmp_path) == from_hf_config(tmp_path / "config.json") == from_hf_config(DENSE_HF)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e6}}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_theta"),
        ({"rope_parameters": {"rope_theta": 5e6, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_only_layers": [3]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"model_type": "qwen2"}, "model_type"),
        ({"num_experts": None}, "num_experts"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"num_local_experts": 64}, "num_local_experts"),
        ({"logit_softcap": 30.0}, "logit_softcap"),
    ],
)
def test_what_the_model_does_not_implement_is_an_error_that_names_it(change, named):
    with pytest.raises(ValueError, match=named):
        from_hf_config(MOE_HF | change)


@pytest.mark.parametrize(
    ("preset", "change", "named"),
    [
        ("tiny", {"num_kv_heads": 3}, "num_kv_heads"),
        ("tiny", {"head_dim": 33}, "head_dim"),
        ("tiny", {"d_ff": 0}, "d_ff"),
        ("tiny", {"norm_topk_prob": True}, "expert"),
        ("tiny_moe", {"experts_per_token": 9}, "experts_per_token"),
        ("tiny_moe", {"d_ff": 64}, "d_ff"),
        ("tiny_moe", {"d_ff_expert": 0}, "d_ff_expert"),
    ],
)
def test_impossible_shapes_are_refused(preset, change, named):
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(PRESETS[preset], **change)
