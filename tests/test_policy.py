"""A policy folder that was half copied or changed is refused, unless the person says otherwise."""

import dataclasses

import jax
import numpy as np
import pytest

from carr_jax.agent.tokenizer import train_bpe
from carr_jax.models.config import PRESETS
from carr_jax.models.qwen3 import init_params
from carr_jax.policy import Policy, read_policy, write_policy
from carr_jax.records import InputError


@pytest.fixture(scope="module")
def policy():
    tokenizer = train_bpe(["a page about nothing"], 300)
    model = dataclasses.replace(
        PRESETS["tiny"], vocab_size=tokenizer.vocab_size, d_model=16, num_layers=1, d_ff=8
    )
    return Policy(model, init_params(model, jax.random.key(0)), tokenizer)


def test_round_trip(policy, tmp_path):
    write_policy(tmp_path / "p", policy)
    again = read_policy(tmp_path / "p")
    assert again.model == policy.model
    assert again.tokenizer.content_hash() == policy.tokenizer.content_hash()
    jax.tree.map(np.testing.assert_array_equal, again.params, policy.params)


def test_a_changed_folder_is_refused_until_its_manifest_is_removed(policy, tmp_path):
    write_policy(tmp_path / "p", policy)
    weights = tmp_path / "p" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1  # one bit: the file still loads
    weights.write_bytes(data)
    with pytest.raises(InputError, match="model.safetensors was changed"):
        read_policy(tmp_path / "p")
    (tmp_path / "p" / "manifest.json").unlink()
    read_policy(tmp_path / "p")
    write_policy(tmp_path / "q", policy)
    (tmp_path / "q" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="tokenizer.json is missing"):
        read_policy(tmp_path / "q")
