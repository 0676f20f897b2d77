"""A policy folder: weights, architecture and tokenizer, everything needed to act.

policy.safetensors   parameters, flat names
config.json          architecture, the fields of ModelConfig
tokenizer.json       as Hugging Face writes it
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from carr_jax.agent.tokenizer import Tokenizer, train_bpe
from carr_jax.learning.checkpoint import load_params, save_params
from carr_jax.models.config import PRESETS, ModelConfig, from_hf_config
from carr_jax.models.qwen3 import init_params


@dataclass(frozen=True)
class Policy:
    """`params` is a nested dict of fp32 arrays, layers stacked on a leading axis."""

    model: ModelConfig
    params: Any
    tokenizer: Tokenizer


def load_policy(config: ConfigDict, corpus_texts: list[str]) -> Policy:
    """The policy that `config.model` names: a folder, or random weights from `config.seed`.

    A new tokenizer is trained on `corpus_texts` when no folder brings one.
    """
    if config.model.policy:
        return read_policy(Path(config.model.policy))
    if config.model.tokenizer:
        tokenizer = Tokenizer.load(config.model.tokenizer)
    else:
        tokenizer = train_bpe(corpus_texts, config.model.vocab_size)
    if config.model.hf_config:
        model = from_hf_config(config.model.hf_config)
    else:
        model = dataclasses.replace(PRESETS[config.model.preset], vocab_size=tokenizer.vocab_size)
    return Policy(model, init_params(model, jax.random.key(config.seed)), tokenizer)


def read_policy(folder: Path) -> Policy:
    """Inverse of `write_policy`."""
    model = ModelConfig(**json.loads((folder / "config.json").read_text()))
    return Policy(model, load_params(folder / "policy.safetensors")[0], Tokenizer.load(folder))


def write_policy(folder: Path, policy: Policy) -> None:
    """Writes the three files of a policy folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(policy.model), indent=1) + "\n")
    policy.tokenizer.save(folder)
    save_params(folder / "policy.safetensors", policy.params, {})
