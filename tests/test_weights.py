"""Checkpoint folders: what is written is Hugging Face's layout, and what is read fits or is refused by name."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from carr_jax.models.config import PRESETS, ModelConfig, from_hf_config, to_hf_config
from carr_jax.models.qwen3 import init_params, param_shardings
from carr_jax.records import InputError
from carr_jax.sharding import make_mesh
from carr_jax.weights import load_params, save_params, stored_shape, table, verify

SMALL = dict(vocab_size=48, d_model=24, head_dim=16, num_heads=4, num_kv_heads=2)
DENSE = dataclasses.replace(PRESETS["tiny"], **SMALL, num_layers=3, d_ff=40)
UNTIED = dataclasses.replace(DENSE, tie_embeddings=False)
MOE = dataclasses.replace(PRESETS["tiny_moe"], **SMALL, num_layers=2, d_ff_expert=12, num_experts=4)
CONFIGS = pytest.mark.parametrize("config", [DENSE, UNTIED, MOE], ids=["tied", "untied", "moe"])


def make_params(config: ModelConfig):
    return jax.device_get(init_params(config, jax.random.key(0)))


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@CONFIGS
def test_round_trip(config, tmp_path):
    params = make_params(config)
    save_params(tmp_path / "p", params, config)
    assert from_hf_config(tmp_path / "p") == config
    assert_equal(load_params(tmp_path / "p", config), params)
    assert verify(tmp_path / "p") == []


@CONFIGS
def test_another_reader_sees_linear_layers_as_out_by_in(config, tmp_path):
    params = make_params(config)
    save_params(tmp_path / "p", params, config)
    stored = load_file(tmp_path / "p" / "model.safetensors")
    attention = params["layers"]["attention"]
    heads = config.num_heads * config.head_dim
    expected = {
        "model.embed_tokens.weight": params["embedding"],
        "model.layers.1.self_attn.q_proj.weight": attention["q"][1].reshape(config.d_model, heads).T,
        "model.layers.1.self_attn.o_proj.weight": attention["o"][1].reshape(heads, config.d_model).T,
        "model.layers.1.self_attn.k_norm.weight": attention["k_norm"]["scale"][1],
        "model.layers.0.post_attention_layernorm.weight": params["layers"]["mlp_norm"]["scale"][0],
        "model.norm.weight": params["final_norm"]["scale"],
    }
    if config.is_moe:
        moe = params["layers"]["moe"]
        expected["model.layers.1.mlp.gate.weight"] = moe["router"][1].T
        expected["model.layers.1.mlp.experts.3.down_proj.weight"] = moe["down"][1, 3].T
    else:
        expected["model.layers.1.mlp.up_proj.weight"] = params["layers"]["mlp"]["up"][1].T
    if not config.tie_embeddings:
        expected["lm_head.weight"] = params["head"].T
    for name, values in expected.items():
        np.testing.assert_array_equal(stored[name], values, err_msg=name)
    assert set(stored) == {e.name for e in table(config)}
    assert ("lm_head.weight" in stored) is not config.tie_embeddings


@CONFIGS
def test_shards_hold_every_tensor_once_and_the_index_agrees(config, tmp_path):
    params = make_params(config)
    save_params(tmp_path / "p", params, config, shard_bytes=9000)
    index = json.loads((tmp_path / "p" / "model.safetensors.index.json").read_text())
    found = {}
    for name in sorted(set(index["weight_map"].values())):
        with safe_open(tmp_path / "p" / name, framework="numpy") as file:
            found |= dict.fromkeys(file.keys(), name)
    assert found == index["weight_map"] and len(set(found.values())) > 2
    assert index["metadata"]["total_size"] == 4 * sum(x.size for x in jax.tree.leaves(params))
    assert_equal(load_params(tmp_path / "p", config), params)


def test_bf16_keeps_its_bytes_through_fp32(tmp_path):
    save_params(tmp_path / "a", make_params(MOE), MOE, "bfloat16")
    again = load_params(tmp_path / "a", MOE)
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(again))
    save_params(tmp_path / "b", again, MOE, "bfloat16")
    for name in ("model.safetensors", "config.json", "manifest.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@CONFIGS
def test_straight_onto_a_mesh_and_back(config, tmp_path):
    params = make_params(config)
    save_params(tmp_path / "p", params, config)
    shardings = param_shardings(config, make_mesh(dict(data=1, fsdp=2, expert=1, context=1, tensor=2)))
    loaded = load_params(tmp_path / "p", config, shardings)
    assert jax.tree.map(lambda x: x.sharding, loaded) == shardings
    assert_equal(jax.device_get(loaded), params)
    save_params(tmp_path / "q", loaded, config)
    assert (tmp_path / "q" / "manifest.json").read_bytes() == (tmp_path / "p" / "manifest.json").read_bytes()


@CONFIGS
def test_the_real_sizes_have_the_published_number_of_tensors(config):
    shapes = {e.name: e for e in table(config)}
    per_layer = 8 + (1 + 3 * config.num_experts if config.is_moe else 3)
    assert len(shapes) == 2 + config.num_layers * per_layer + (not config.tie_embeddings)
    router = shapes.get("model.layers.0.mlp.gate.weight")
    assert router is None or stored_shape(router, (2, 24, 4)) == (4, 24)


# ------------------------------------------------------------------------------------------ what is refused


def rewritten(folder, change, config=DENSE):
    """A checkpoint whose tensors went through `change`."""
    save_params(folder, make_params(config), config)
    file = folder / "model.safetensors"
    tensors = {k: v.copy() for k, v in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)
    return folder


def test_wrong_tensors_are_named(tmp_path):
    def change(tensors):
        del tensors["model.layers.2.mlp.up_proj.weight"]
        tensors["model.layers.3.mlp.up_proj.weight"] = np.zeros(2, np.float32)
        tensors["model.norm.weight"] = np.zeros(25, np.float32)

    with pytest.raises(InputError) as error:
        load_params(rewritten(tmp_path / "p", change), DENSE)
    for part in (
        "missing: model.layers.2.mlp.up_proj.weight",
        "unknown: model.layers.3.mlp.up_proj.weight",
        "model.norm.weight is [25], needs to be [24]",
    ):
        assert part in str(error.value)


def test_a_head_must_agree_with_the_config(tmp_path):
    def twice(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    def another(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    def none(tensors):
        del tensors["lm_head.weight"]

    assert_equal(load_params(rewritten(tmp_path / "a", twice), DENSE), make_params(DENSE))
    with pytest.raises(InputError, match="lm_head.weight is another matrix"):
        load_params(rewritten(tmp_path / "b", another), DENSE)
    with pytest.raises(InputError, match=r"missing: lm_head.weight; does config.json mean tie_word_embeddings"):
        load_params(rewritten(tmp_path / "c", none, UNTIED), UNTIED)


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])


def garble(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)


def integers(folder):
    save_file({"model.norm.weight": np.zeros(24, np.int32)}, folder / "model.safetensors")


def remove(folder):
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut, "does not lie inside the file"),
        (garble, "not a whole safetensors file"),
        (integers, "has the type I32"),
        (remove, "there is no model.safetensors"),
    ],
)
def test_damaged_files_are_refused(damage, says, tmp_path):
    save_params(tmp_path / "p", make_params(DENSE), DENSE)
    damage(tmp_path / "p")
    with pytest.raises(InputError, match=says):
        load_params(tmp_path / "p", DENSE)
    assert verify(tmp_path / "p")


def test_an_index_cannot_point_out_of_its_folder(tmp_path):
    save_params(tmp_path / "p", make_params(DENSE), DENSE)
    index = {"weight_map": {"model.norm.weight": "../secret.safetensors"}}
    (tmp_path / "p" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="no plain file name"):
        load_params(tmp_path / "p", DENSE)


def test_a_failing_write_leaves_the_old_folder(tmp_path):
    params = make_params(DENSE)
    save_params(tmp_path / "p", params, DENSE)
    with pytest.raises(KeyError):
        save_params(tmp_path / "p", {k: v for k, v in params.items() if k != "final_norm"}, DENSE)
    assert verify(tmp_path / "p") == []
    assert_equal(load_params(tmp_path / "p", DENSE), params)
    save_params(tmp_path / "p", params, DENSE, "bfloat16")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p"]


@CONFIGS
def test_config_json_round_trip(config):
    assert from_hf_config(to_hf_config(config)) == config
