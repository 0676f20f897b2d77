"""Small random checkpoints and the logits that Hugging Face transformers (torch, CPU, fp32) gives for them.

    python tests/models/golden.py      # needs torch and transformers; rewrites golden.npz beside this file

Weights follow from the names of the tensors, so only the logits are stored.  The script also checks that
transformers loads each checkpoint without a missing or unexpected tensor, and again after our own writer.
"""

import json
import sys
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from carr_jax.models.config import from_hf_config, to_hf_config
from carr_jax.models.qwen3 import param_shapes
from carr_jax.weights import load_params, save_params, stored_shape, table

FILE = Path(__file__).with_name("golden.npz")
LENGTH = 12
_DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,  # not hidden_size / heads
    "intermediate_size": 40,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 70_000,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
    "attention_bias": False,
}
_MOE = {
    **_DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
}


def _newer_rope(config: dict, theta: float) -> dict:
    """The dialect of transformers 5."""
    rest = {k: v for k, v in config.items() if k != "rope_theta"}
    return rest | {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


# name -> (config.json, first position)
CASES = {
    "dense_tied": (_DENSE, 0),
    "dense_untied": (_DENSE | {"tie_word_embeddings": False}, 0),
    "dense_new_rope": (_newer_rope(_DENSE, 5_000_000.0), 0),
    "dense_far": (_newer_rope(_DENSE, 5_000_000.0), 63_000),
    "moe": (_MOE, 0),
    "moe_raw_weights": (_MOE | {"norm_topk_prob": False, "tie_word_embeddings": True}, 0),
    "moe_far": (_newer_rope(_MOE, 10_000_000.0), 63_000),
}


def inputs(case: str) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and positions, int64 [1, LENGTH]."""
    ids = np.random.default_rng(zlib.crc32(case.encode())).integers(0, 64, (1, LENGTH))
    return ids, CASES[case][1] + np.arange(LENGTH)[None]


def write_checkpoint(folder: Path, case: str) -> None:
    """A checkpoint folder with weights that follow from the tensors' names."""
    from safetensors.numpy import save_file

    hf = CASES[case][0]
    config = from_hf_config(hf)
    tensors = {}
    for entry in table(config):
        shape = param_shapes(config)
        for key in entry.path:
            shape = shape[key]
        values = np.random.default_rng(zlib.crc32(entry.name.encode())).standard_normal(
            stored_shape(entry, shape.shape)
        )
        tensors[entry.name] = (1 + 0.3 * values if "norm" in entry.name else 0.3 * values).astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf))


def torch_logits(folder: Path, case: str) -> np.ndarray:
    """float32 [LENGTH, V] from transformers; raises when a tensor is missing or left over."""
    import torch
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    left = {k: v for k, v in info.items() if v}
    if left:
        raise AssertionError(f"{case}: {left}")
    ids, positions = map(torch.tensor, inputs(case))
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions).logits[0].numpy()


def main() -> None:
    import tempfile

    logits = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            first, second = Path(scratch) / "first", Path(scratch) / "second"
            write_checkpoint(first, case)
            logits[case] = torch_logits(first, case)
            config = from_hf_config(first)
            save_params(second, load_params(first, config), config)
            assert from_hf_config(to_hf_config(config)) == config
            np.testing.assert_array_equal(torch_logits(second, case), logits[case])
    np.savez_compressed(FILE, **logits)
    print(f"{FILE}: {', '.join(logits)}; ours, written again, gives transformers the same logits")


if __name__ == "__main__":
    main()
