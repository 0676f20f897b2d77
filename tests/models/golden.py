"""Small random checkpoints and what Hugging Face transformers (torch, CPU, fp32) gives for them.

    python tests/models/golden.py      # needs torch and transformers; rewrites golden.npz beside this file

Weights follow from the names of the tensors, so only logits are stored, and for `LAYERED` the hidden states
between the layers.  The script also checks that transformers loads each checkpoint without a missing or
unexpected tensor, and again after our own writer.
"""

import json
import sys
import zlib
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from carr_jax.models.compute import Compute
from carr_jax.models.config import ModelConfig, from_hf_config, to_hf_config
from carr_jax.models.qwen3 import Params, hidden_states, param_shapes
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
    "dense_deep": (_DENSE | {"num_hidden_layers": 6}, 0),
    "moe_deep": (_MOE | {"num_hidden_layers": 6}, 0),
}
LAYERED = ("dense_deep", "moe_deep")


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


def hidden_name(case: str) -> str:
    """The name in golden.npz of the hidden states of a case."""
    return f"{case}_hidden"


def torch_outputs(folder: Path, case: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 logits [LENGTH, V] and hidden states [1 + layers, LENGTH, D] from transformers.

    The first state is the embedding, the last stands after the final norm.  Raises when a tensor is missing or
    left over.
    """
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
        out = model(input_ids=ids, position_ids=positions, output_hidden_states=True)
    return out.logits[0].numpy(), np.stack([state[0].numpy() for state in out.hidden_states])


def torch_states(hidden: np.ndarray, params: Params, config: ModelConfig) -> np.ndarray:
    """[1 + layers, LENGTH, D] of transformers' hidden states, each after the final norm as the last one is."""
    inner = hidden[:-1].astype(np.float64)
    scale = np.asarray(params["final_norm"]["scale"], np.float64)
    normed = inner / np.sqrt(np.mean(inner**2, axis=-1, keepdims=True) + config.rms_eps) * scale
    return np.concatenate([normed, hidden[-1:]])


def our_states(params: Params, config: ModelConfig, case: str, compute: Compute = Compute()) -> np.ndarray:
    """The same of our model, float32."""
    ids, positions = (x.astype(np.int32) for x in inputs(case))
    forward = jax.jit(lambda p: hidden_states(p, config, ids, positions, np.ones_like(ids), compute)[0])
    states = [forward(silenced(params, n)) for n in range(config.num_layers + 1)]
    return np.stack(states).astype(np.float32)


def silenced(params: Params, first: int) -> Params:
    """The parameters with layers that add nothing from `first` on, so that the state before it comes out."""

    def silence(path: tuple, leaf: np.ndarray) -> np.ndarray:
        if path[-1].key not in ("o", "down"):  # what attention and MLP end with
            return leaf
        return np.concatenate([leaf[:first], np.zeros_like(leaf[first:])])

    return jax.tree_util.tree_map_with_path(silence, params)


def main() -> None:
    import tempfile

    stored = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            first, second = Path(scratch) / "first", Path(scratch) / "second"
            write_checkpoint(first, case)
            stored[case], hidden = torch_outputs(first, case)
            if case in LAYERED:
                stored[hidden_name(case)] = hidden
            config = from_hf_config(first)
            save_params(second, load_params(first, config), config)
            assert from_hf_config(to_hf_config(config)) == config
            np.testing.assert_array_equal(torch_outputs(second, case)[0], stored[case])
    np.savez_compressed(FILE, **stored)
    print(f"{FILE}: {', '.join(stored)}; ours, written again, gives transformers the same logits")


if __name__ == "__main__":
    main()
