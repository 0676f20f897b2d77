"""Between a Hugging Face model folder and our weights, in both directions, checked on the way.

From a model folder the weights go tensor by tensor from file to file; nothing of the model is held.  From a run
folder the parameters of one checkpoint are held once, in float32, without the optimiser's moments.  The folder
that is written serves both sides: it is the policy folder of our configurations, and transformers and SGLang
load it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from carr_jax.agent.tokenizer import Tokenizer
from carr_jax.learning.checkpoint import restore_params
from carr_jax.models.config import ModelConfig, from_hf_config
from carr_jax.models.qwen3 import param_shapes
from carr_jax.policy import Policy, files_beside, refuse_changed, write_policy
from carr_jax.records import InputError
from carr_jax.run import RunFolder
from carr_jax.sanity import doubt, strict_limit
from carr_jax.weights import Stack, load_params, map_params, read_tensors, verify


@dataclass(frozen=True)
class Conversion:
    """What is asked for.  `step` is of a run's checkpoint, None the newest; `text` a file to check with."""

    source: Path
    target: Path
    dtype: str
    check: bool
    step: int | None = None
    text: Path | None = None


def convert(job: Conversion, say: Callable[[str], None] = print) -> None:
    """Reads, checks, writes, verifies, and says so line by line.

    Raises InputError with everything that is wrong with the source, or when the check fails; nothing is written
    then.
    """
    run = RunFolder(job.source).checkpoints.is_dir()
    policy = read_run(job, say) if run else map_policy(job.source)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(policy.params))
    kind = f"{policy.model.num_experts} experts" if policy.model.is_moe else "dense"
    say(f"{job.source}: {policy.model.num_layers} layers, {kind}, {size:,} parameters")
    if job.check:
        say(check(policy, job))
    write_policy(job.target, policy, job.dtype)
    wrong = verify(job.target) + ([] if run else differences(job.source, job.target))
    if wrong:
        raise InputError(f"{job.target} is not what was to be written: {'; '.join(wrong)}; is the disk sound?")
    files = ", ".join(sorted(p.name for p in job.target.iterdir() if p.suffix != ".safetensors"))
    say(f"{job.target}: weights in {job.dtype}, {files}")
    say(
        "verified: "
        + ("" if run else f"each tensor is the source's in {job.dtype}, ")
        + "all checksums are right"
    )


# ------------------------------------------------------------------------------------------- the two sources


def map_policy(folder: Path) -> Policy:
    """The policy of a model folder with parameters that stay in their files.

    Raises InputError that names everything that is wrong, with the architecture, the weights, the tokenizer.
    """
    refuse_changed(folder)
    problems: list[str] = []
    model = _try(lambda: from_hf_config(folder), problems, folder / "config.json")
    params = model and _try(lambda: map_params(folder, model), problems)
    tokenizer = _try(lambda: Tokenizer.load(folder), problems, folder / "tokenizer.json")
    if model and tokenizer and tokenizer.vocab_size > model.vocab_size:
        sizes = f"the tokenizer has {tokenizer.vocab_size} tokens, the model {model.vocab_size}"
        problems.append(f"{folder}: {sizes}")
    if problems:
        raise InputError("; ".join(problems))
    return Policy(model, params, tokenizer, files_beside(folder))


def read_run(job: Conversion, say: Callable[[str], None]) -> Policy:
    """The policy of a checkpoint of a run."""
    run = RunFolder(job.source)
    facts = json.loads((run.path / "config.json").read_text())
    if "architecture" not in facts or not run.tokenizer.is_dir():
        raise InputError(
            f"{run.path} does not say which architecture and tokenizer it has, as runs of an older version; "
            f"resume it for a step, or convert {run.policy} when it has finished"
        )
    model = from_hf_config(facts["architecture"])
    step, params = restore_params(run.checkpoints, job.step, _on_one_device(model))
    say(f"checkpoint {step} of {run.checkpoints}")
    return Policy(model, params, Tokenizer.load(run.tokenizer), files_beside(run.tokenizer))


def _on_one_device(model: ModelConfig) -> Any:
    sharding = SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), param_shapes(model)
    )


def _try(read: Callable[[], Any], problems: list[str], where: Path | None = None) -> Any:
    """What `read` gives; None when it fails, and the reason is added to `problems`."""
    try:
        return read()
    except Exception as error:  # a bad tokenizer.json raises a bare Exception
        text = " ".join(str(error).split())
        problems.append(text if where is None or str(where) in text else f"{where}: {text}")
        return None


# ------------------------------------------------------------------------------------------------ the checks


def check(policy: Policy, job: Conversion) -> str:
    """Says how well the policy predicts text; holds the model once.  Raises InputError when it does not."""
    if isinstance(jax.tree.leaves(policy.params)[0], Stack):
        shardings = jax.tree.map(lambda x: x.sharding, _on_one_device(policy.model))
        params = load_params(job.source, policy.model, shardings)
        policy = dataclasses.replace(policy, params=params)
    texts = [(str(job.text), job.text.read_text(errors="replace"))] if job.text else []
    reading, said = doubt(policy, strict_limit(policy.model.vocab_size), texts)
    if said:
        raise InputError(
            f"{job.source} was not converted: {said}; a text of its own kind is given with --text=FILE, and "
            "--no-check converts a model that is random or unusual"
        )
    return f"perplexity {reading.perplexity:,.1f} on {reading.text} ({reading.tokens} tokens): it predicts text"


def differences(source: Path, target: Path) -> list[str]:
    """Tensors of two model folders that are not the same in the type of the target, compared by name."""
    before, after = read_tensors(source), read_tensors(target)
    changed = [n for n, x in after.items() if not _same_bits(before[n].astype(x.dtype, copy=False), x)]
    return [f"{len(changed)} tensors differ, {changed[0]} first"] if changed else []


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    bits = f"u{b.dtype.itemsize}"
    return np.array_equal(a.view(bits), b.view(bits))
