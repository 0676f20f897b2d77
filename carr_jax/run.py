"""A run is a folder: config.json, tokenizer/, metrics.jsonl, trajectories/, checkpoints/, report.html."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from carr_jax import __version__
from carr_jax.config import flatten
from carr_jax.distributed import is_first, must_agree, must_share
from carr_jax.models.config import to_hf_config
from carr_jax.observe.files import atomic_file, write_json
from carr_jax.policy import Policy, small_files, weights_sha256
from carr_jax.records import InputError
from carr_jax.stored import to_json
from carr_jax.task import Task


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of one run lie."""

    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def policy(self) -> Path:
        return self.path / "policy"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    def trajectories(self, step: int) -> Path:
        return self.path / "trajectories" / f"step_{step:06d}.jsonl.gz"

    def begun(self, step: int) -> Path:
        """The groups in flight at the checkpoint of a step."""
        return self.path / "begun" / f"step_{step:06d}.jsonl.gz"

    def forget_begun(self, kept: Sequence[int]) -> None:
        """Remove those of checkpoints that are no longer there."""
        for path in (self.path / "begun").glob("step_*.jsonl.gz"):
            if path not in map(self.begun, kept):
                path.unlink()

    def describe(self, config: ConfigDict, policy: Policy, inputs: Mapping[str, str]) -> None:
        """Writes config.json: the resolved configuration with versions and hashes of data and weights.

        `inputs` are the hashes of what is learned from.  With its `architecture` and the folder tokenizer/, a
        checkpoint can be exported from the run alone.  Raises InputError when several processes do not share
        this folder, or differ in any of that, and for a run that goes on with other traces than it began with.
        """
        must_share(self.path)
        facts = {
            "config": json.loads(json.dumps(flatten(config))),
            "architecture": to_hf_config(policy.model),
            "versions": _versions(),
            **inputs,
            "tokenizer_sha256": policy.tokenizer.content_hash(),
        }
        self._refuse_other_traces(facts)
        must_agree(facts)
        if not is_first():
            return
        begins = config.model.policy  # else the weights are drawn from config.seed
        facts |= {
            "devices": [str(d) for d in jax.devices()],
            "weights_sha256": weights_sha256(Path(begins)) if begins else None,
        }
        for name, content in small_files(policy).items():
            with atomic_file(self.tokenizer / name) as file:
                file.write(content)
        write_json(self.path / "config.json", facts)

    def _refuse_other_traces(self, facts: Mapping[str, Any]) -> None:
        file = self.path / "config.json"
        before = json.loads(file.read_bytes()) if file.is_file() else facts
        if before.get("traces_sha256") != facts.get("traces_sha256"):
            raise InputError(
                f"{self.path} began with other traces than those of config.sft.traces now; choose a new folder"
            )


def inputs_of(task: Task) -> dict[str, str]:
    """The hashes of a task's questions and pages."""
    return {
        "questions_sha256": _sha256(json.dumps([to_json(q) for q in task.questions]).encode()),
        "pages_sha256": _sha256(json.dumps([to_json(p) for p in task.pages]).encode()),
    }


def _versions() -> dict[str, str]:
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tokenizers", "tantivy", "numpy")
    versions = {name: importlib.metadata.version(name) for name in names}
    return {
        "carr_jax": __version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        **versions,
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
