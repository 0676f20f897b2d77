"""A policy folder is a Hugging Face model folder: weights, architecture, tokenizer: all that acting needs.

model.safetensors    parameters (or shards with model.safetensors.index.json)
config.json          architecture
tokenizer.json       as it was read
and, where there are any, the files of `BESIDE`, which other programs need to serve the model
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from carr_jax.agent import tokenizer as tokenizers
from carr_jax.agent.tokenizer import Tokenizer, train_bpe
from carr_jax.distributed import is_first, stop_together
from carr_jax.models.config import PRESETS, ModelConfig, from_hf_config
from carr_jax.models.qwen3 import init_params, param_shardings
from carr_jax.sharding import make_mesh
from carr_jax.stored import file_sha256
from carr_jax.weights import MANIFEST, load_params, save_params, verify

SAMPLE = "sample.txt"  # a text that the policy must predict well, see sanity.py
BESIDE = (
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", "generation_config.json", SAMPLE),
)


@dataclass(frozen=True)
class Policy:
    """`params` is a nested dict of fp32 arrays, layers stacked on a leading axis.

    `beside` holds further files of the folder by name, byte for byte.
    """

    model: ModelConfig
    params: Any
    tokenizer: Tokenizer
    beside: Mapping[str, bytes] = field(default_factory=dict)


def load_policy(config: ConfigDict, corpus_texts: list[str]) -> Policy:
    """The policy that `config.model` names, on its mesh: a folder, or random weights from `config.seed`.

    A new tokenizer is trained on `corpus_texts` when no folder brings one.
    """
    mesh = make_mesh(config.mesh)
    if config.model.policy:
        return read_policy(Path(config.model.policy), mesh)
    beside: dict[str, bytes] = {}
    if config.model.tokenizer:
        tokenizer = Tokenizer.load(config.model.tokenizer)
        beside = files_beside(Path(config.model.tokenizer))
        beside.pop(SAMPLE, None)  # that of other weights
    else:
        tokenizer = train_bpe(corpus_texts, config.model.vocab_size)
    if config.model.hf_config:
        model = from_hf_config(config.model.hf_config)
    else:
        model = dataclasses.replace(PRESETS[config.model.preset], vocab_size=tokenizer.vocab_size)
    init = jax.jit(init_params, static_argnums=0, out_shardings=param_shardings(model, mesh))
    return Policy(model, init(model, jax.random.key(config.seed)), tokenizer, beside)


def read_policy(folder: Path, mesh: Mesh | None = None) -> Policy:
    """A policy from its folder, parameters on `mesh` or else as NumPy arrays.

    Raises InputError that names what does not fit, or what was changed since the folder was written.
    """
    refuse_changed(folder)
    model = from_hf_config(folder)
    shardings = None if mesh is None else param_shardings(model, mesh)
    params = load_params(folder, model, shardings)
    return Policy(model, params, Tokenizer.load(folder), files_beside(folder))


def refuse_changed(folder: Path) -> None:
    """Raises InputError that names the files of a folder which are not those of its manifest.

    One process reads all files, the others trust it.
    """
    problems = verify(folder) if is_first() else []
    advice = "copy the folder again, or remove its manifest.json to use it so"
    stop_together(f"{folder}: {'; '.join(problems)}; {advice}" if problems else "")


def files_beside(folder: Path) -> dict[str, bytes]:
    """Those of `BESIDE` that lie in a folder."""
    return {name: (folder / name).read_bytes() for name in BESIDE if (folder / name).is_file()}


def weights_sha256(folder: Path) -> str:
    """One hash over the weight files of a policy folder, by its manifest when it has one."""
    if (folder / MANIFEST).is_file():
        sums = json.loads((folder / MANIFEST).read_text())["sha256"]
    else:
        sums = {path.name: file_sha256(path) for path in folder.glob("*.safetensors")}
    weights = sorted((name, checksum) for name, checksum in sums.items() if name.endswith(".safetensors"))
    return hashlib.sha256(json.dumps(weights).encode()).hexdigest()


def write_policy(folder: Path, policy: Policy, dtype: str = "float32") -> None:
    """Writes a policy folder, which transformers and SGLang can load as well; all processes take part."""
    save_params(folder, policy.params, policy.model, dtype, beside=small_files(policy))


def small_files(policy: Policy) -> dict[str, bytes]:
    """All files of a policy folder but the weights and config.json, by name."""
    return {tokenizers.FILE: policy.tokenizer.source.encode(), **policy.beside}
