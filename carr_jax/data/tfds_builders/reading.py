"""Datasets from disk as our own records, checked against the checksum that they were made with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tensorflow_datasets as tfds

from carr_jax.data.conversations import History
from carr_jax.data.tfds_builders.builders import examples_sha256
from carr_jax.data.tfds_builders.features import (
    HISTORY,
    QUESTION,
    Example,
    history_example,
    history_of,
    question_example,
    question_of,
)
from carr_jax.records import InputError, Question

Record = TypeVar("Record")


def read_question_dataset(data_dir: str | Path, name: str) -> list[Question]:
    """All questions, split after split in their order; `name` is NAME or NAME:VERSION, else the newest version.

    Raises InputError when there is no such dataset, when it holds no questions, or when it was changed.
    """
    return _read(dataset_folder(data_dir, name), QUESTION, question_of, question_example)


def read_history_dataset(data_dir: str | Path, name: str) -> list[History]:
    """All histories; see `read_question_dataset`."""
    return _read(dataset_folder(data_dir, name), HISTORY, history_of, history_example)


def dataset_folder(data_dir: str | Path, name: str) -> Path:
    """Where a dataset lies.  Raises InputError when there is none."""
    wanted, _, version = name.partition(":")
    folder = Path(data_dir) / wanted
    versions = [str(found) for found in tfds.core.utils.version.list_all_versions(folder)] if wanted else []
    if not versions or (version and version not in versions):
        there = f"; it has {', '.join(versions)}" if versions else "; make it with launch/build_dataset.py"
        raise InputError(f"{data_dir}: there is no dataset {name!r}{there}")
    return folder / (version or versions[-1])


def _read(
    folder: Path,
    features: tfds.features.FeaturesDict,
    record_of: Callable[[Example], Record],
    example_of: Callable[[Record], Example],
) -> list[Record]:
    try:
        builder = tfds.builder_from_directory(folder)
        if set(builder.info.features) != set(features):
            raise InputError(f"{folder}: its records have {', '.join(builder.info.features)}: another kind")
        sources = {split: builder.as_data_source(split) for split in builder.info.splits}
        found = {split: [record_of(example) for example in rows] for split, rows in sources.items()}
    except InputError:
        raise
    except Exception as error:  # TFDS and its readers raise whatever they like
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{folder}: cannot be read ({reason:.300}); build it again") from None
    _check(folder, (builder.info.metadata or {}).get("sha256"), found, example_of)
    return [record for records in found.values() for record in records]


def _check(
    folder: Path, sha256: Any, found: dict[str, Sequence[Record]], example_of: Callable[[Record], Example]
) -> None:
    """Raises InputError unless the records are those that were written."""
    now = {split: examples_sha256([example_of(r) for r in records]) for split, records in found.items()}
    if sha256 != now:
        raise InputError(f"{folder}: it is not what was built; remove the folder and build it again")
