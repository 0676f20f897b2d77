"""The datasets by name; importing this file makes TFDS know them.

    carr_questions      questions with rubrics, from any file that `data.sources` reads
    deepdive_questions  questions of DeepDive's qa splits, for outcome rewards or for making rubrics
    sft_traces          histories of expert agents, from any file that `data.conversations` reads
    built_in_world      questions of the built-in world, with its pages beside them

`source` is the file, the folder, or the name on the hub; without it TFDS's `manual_dir` is read.  Nothing is
downloaded otherwise.  Examples keep the order of their source, and the metadata of a dataset hold the SHA-256
of what it was made from and of what it holds.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from carr_jax.data.conversations import read_histories
from carr_jax.data.files import HUB, corpus_file, data_files
from carr_jax.data.origins import CARR, DEEPDIVE, WORLD, Origin
from carr_jax.data.sources import read_questions
from carr_jax.data.tfds_builders.features import (
    HISTORY,
    QUESTION,
    Example,
    history_example,
    question_example,
)
from carr_jax.records import InputError, Page, Question
from carr_jax.search.world import SPLITS, WorldConfig, build_world
from carr_jax.stored import file_sha256

Examples = Mapping[str, Sequence[Example]]


class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """What the datasets share: how examples become splits, and what the metadata say of them."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Give the file or folder as `source`, or put it into manual_dir."
    features: ClassVar[tfds.features.FeaturesDict] = QUESTION
    origin: ClassVar[Origin] = CARR

    def __init__(self, source: str | Path = "", **options: Any) -> None:
        self.source = str(source)
        super().__init__(**{"file_format": "array_record", **options})

    def made_from(self, source: str) -> Mapping[str, Any]:
        """What the dataset follows from, to tell whether one that is there is the one asked for."""
        return source_sha256(source)

    @abc.abstractmethod
    def examples(self, source: str) -> Examples:
        """The examples of each split, in order.  Raises InputError."""

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=(self.__doc__ or "").strip(),
            features=self.features,
            citation=self.origin.citation,
            license=self.origin.licence or None,
            disable_shuffling=True,
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: Any) -> Mapping[str, Iterator[tuple[int, Example]]]:
        source = self.source or str(dl_manager.manual_dir)
        found = self.examples(source)
        if bad := [name for name in found if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)]:
            raise InputError(f"{source}: {bad[0]!r} cannot be the name of a split; write letters, digits and _")
        self.info.metadata["made_from"] = self.made_from(source)
        self.info.metadata["sha256"] = {name: examples_sha256(rows) for name, rows in found.items()}
        return {name: self._generate_examples(rows) for name, rows in found.items()}

    def _generate_examples(self, rows: Sequence[Example]) -> Iterator[tuple[int, Example]]:
        yield from enumerate(rows)


class CarrQuestions(Builder):
    """Multi-hop questions with rubrics for citation-aware rewards; those without are left out and counted."""

    def examples(self, source: str) -> Examples:
        found = read_questions(source)
        questions = [question for question in found if question.rubrics]
        if not questions:
            raise InputError(f"{source}: no question has rubrics; make some with launch/rubrics.py")
        self.info.metadata["left_out"] = len(found) - len(questions)
        return by_split(questions)


class DeepdiveQuestions(Builder):
    """Hard questions from walks over Wikipedia, with short answers; qa_rl is `train`, qa_sft is `sft`."""

    origin = DEEPDIVE

    def examples(self, source: str) -> Examples:
        return by_split(read_questions(source))


class SftTraces(Builder):
    """Conversations of expert agents with their tools, from the question to a cited answer."""

    features = HISTORY

    def examples(self, source: str) -> Examples:
        return {"train": [history_example(history) for history in read_histories(source)]}


class BuiltInWorld(Builder):
    """Questions about an invented encyclopedia, with rubrics, hidden entities and gold pages.

    `questions` says how many there are of each split; `world` is made anew from its seed.
    """

    origin = WORLD

    def __init__(
        self, world: WorldConfig | None = None, questions: Mapping[str, int] | None = None, **options: Any
    ) -> None:
        self.world, self.questions = world or WorldConfig(), questions or dict.fromkeys(SPLITS, 96)
        super().__init__(source="world", **options)

    def made_from(self, source: str) -> Mapping[str, Any]:
        world = json.loads(json.dumps(dataclasses.asdict(self.world)))
        return {"world": world, "questions": dict(self.questions)}

    def examples(self, source: str) -> Examples:
        world = build_world(self.world)
        return by_split([q for name, count in self.questions.items() for q in world.questions(name, count)])

    def pages(self) -> tuple[Page, ...]:
        """The encyclopedia."""
        return build_world(self.world).pages


def by_split(questions: Sequence[Question]) -> Examples:
    """Examples of the questions, splits in the order in which they first come."""
    found: dict[str, list[Example]] = {}
    for question in questions:
        found.setdefault(question.split, []).append(question_example(question))
    return found


def examples_sha256(rows: Iterable[Example]) -> str:
    """One checksum of all examples in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def source_sha256(source: str) -> Mapping[str, str]:
    """The SHA-256 of every file of the source by name; of a split of the hub, only its name is known.

    Raises InputError when there is no such file.
    """
    if source.startswith(HUB):
        return {source: ""}
    pages = corpus_file(Path(source))
    files = [*data_files(Path(source)), *([pages] if pages else [])]
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]}: there is no such file")
    return {file.name: file_sha256(file) for file in files}
