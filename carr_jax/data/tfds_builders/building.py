"""Makes a dataset on disk: TFDS's own files, the pages that go with it, and a card beside it."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import tensorflow_datasets as tfds

from carr_jax.data.card import Card, write_card
from carr_jax.data.files import corpus_file
from carr_jax.data.tfds_builders.builders import Builder, BuiltInWorld
from carr_jax.data.tfds_builders.features import QUESTION
from carr_jax.data.tfds_builders.reading import read_history_dataset, read_question_dataset
from carr_jax.journal import line_of
from carr_jax.observe.files import atomic_file
from carr_jax.records import InputError, Page

PAGES = "corpus.jsonl.gz"


def build(builder: Builder, made_by: str) -> Path:
    """Makes the dataset of a builder unless it is there, and returns its folder; `made_by` is the command.

    Raises InputError when the dataset that is there was made from something else.
    """
    folder = Path(builder.data_path)
    known = (builder.info.metadata or {}).get("made_from")
    if folder.is_dir() and known != builder.made_from(builder.source):
        raise InputError(f"{folder} was made from another source; give another --out, or remove it")
    tfds.disable_progress_bar()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # TFDS says where its logs are
        builder.download_and_prepare()
    _add_pages(builder, folder)
    write_card(folder.parent, _card(builder, folder, made_by))
    return folder


def _add_pages(builder: Builder, folder: Path) -> None:
    """The pages that the questions were made from lie beside them, where `config.data.path` finds them."""
    if isinstance(builder, BuiltInWorld):
        _write_pages(folder / PAGES, builder.pages())
    elif builder.features is QUESTION and (pages := corpus_file(Path(builder.source))):
        with atomic_file(folder / pages.name) as file, pages.open("rb") as source:
            shutil.copyfileobj(source, file)


def _write_pages(path: Path, pages: Iterable[Page]) -> None:
    with atomic_file(path) as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        for page in pages:
            packed.write(line_of(page))


def _card(builder: Builder, folder: Path, made_by: str) -> Card:
    """Counts what stands on disk, and so checks it."""
    data_dir, name = folder.parents[1], f"{builder.name}:{builder.version}"
    metadata = builder.info.metadata
    facts = {"version": str(builder.version)}
    facts |= {f"made from {key}": json.dumps(value).strip('"') for key, value in metadata["made_from"].items()}
    if left_out := metadata.get("left_out"):
        facts["left out, without rubrics"] = left_out
    if builder.features is QUESTION:
        return Card.of_questions(
            read_question_dataset(data_dir, name),
            builder.name,
            made_by,
            seed=builder.world.seed if isinstance(builder, BuiltInWorld) else None,
            facts=facts,
        )
    histories = read_history_dataset(data_dir, name)
    turns = [sum(message.role == "assistant" for message in history.messages) for history in histories]
    facts |= {"traces": len(histories), "turns": sum(turns), "turns of the longest": max(turns)}
    return Card(builder.name, made_by, counts={"split": {"train": len(histories)}}, facts=facts)
