"""Frozen files: a manifest beside a question file holds its SHA-256, so that a later change is noticed.

Rubrics are made once, before training (CaRR, section 3.1): runs that saw other rubrics cannot be compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carr_jax.data.card import Card, write_card
from carr_jax.journal import line_of
from carr_jax.observe.files import atomic_file, write_json
from carr_jax.records import InputError
from carr_jax.stored import file_sha256


def manifest_of(file: Path) -> Path:
    """Where the manifest of a file stands, if it has one."""
    return file.with_name(file.name + ".manifest.json")


def rejects_of(file: Path) -> Path:
    """Where the questions stand that were refused; no reader of a folder takes it for a question file."""
    return file.with_name(file.name + ".rejects")


def freeze(
    file: Path, rows: Sequence[Any], rejects: Sequence[Any], facts: Mapping[str, Any], card: Card
) -> None:
    """Writes both files, whole and in order, the card, then the manifest: SHA-256 of `file` and the facts."""
    for path, records in ((file, rows), (rejects_of(file), rejects)):
        with atomic_file(path) as stream:
            stream.writelines(map(line_of, records))
    write_card(file, card)
    write_json(manifest_of(file), {"sha256": file_sha256(file), **facts})


def check_frozen(file: Path) -> None:
    """Raises InputError when `file` has a manifest and is not what the manifest says."""
    manifest = manifest_of(file)
    if not manifest.exists() or not file.is_file():
        return
    try:
        expected = json.loads(manifest.read_bytes())["sha256"]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{manifest}: this is no manifest with a sha256; remove it, or bring it back"
        ) from None
    if file_sha256(file) != expected:
        raise InputError(
            f"{file}: it was changed since it was frozen; bring it back, or remove {manifest.name} to accept it"
        )
