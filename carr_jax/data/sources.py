"""Questions and pages from files.  `data.rows` tells the shapes of rows, `data.files` the kinds of files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from carr_jax.data.files import CORPUS_FILES, HUB, Row, corpus_file, data_files, parse_all, text
from carr_jax.data.frozen import check_frozen
from carr_jax.data.rows import question_from_row
from carr_jax.records import InputError, Page, Question

_HELD_OUT = frozenset("dev val valid validation test eval".split())


def read_questions(
    path: str | Path,
    split: str | None = None,
    on_bad: Callable[[Sequence[str]], Any] | None = None,
    answers: bool = True,
) -> list[Question]:
    """The questions of a file or of all question files of a directory; only of `split` if given.

    In a directory, every .jsonl(.gz) and .parquet file but the corpus is read, by name.  A corpus beside the
    questions gives the support URLs; without it, a title has its Wikipedia address.  A row that names no split
    is held out ("dev") when its file's name has the word dev, validation, test or eval, for supervised
    fine-tuning ("sft") with the word sft, else for training ("train").

    A row of ours with the answer "" is bad, unless `answers` is False: a question that only rubrics can judge.

    Bad rows, each as "file:line: reason", go to `on_bad`; without it they raise InputError, the first ten and
    how many there are.  So does a file that is not there, or was changed since it was frozen.
    """
    path = Path(path)
    files = data_files(path)
    for file in files:
        check_frozen(file)
    corpus = corpus_file(path)
    urls = {page.title: page.url for page in read_pages(corpus)} if corpus else {}
    splits = {str(file): split_of(file) for file in files}
    first: dict[str, tuple[str, Question]] = {}

    def parse(row: Row, place: str) -> Question | None:
        question = question_from_row(row, urls, splits[place.rpartition(":")[0]])
        if answers and not question.answer:
            raise ValueError("it has no answer; only launch/collect_sft.py --without-answers can use it")
        before, same = first.setdefault(question.id, (place, question))
        if before == place:
            return question
        if same == question and "id" not in row:
            return None  # one of the copies of a question that evaluation files have
        raise ValueError(f"the id {question.id!r} is taken by {before}")

    questions = [q for q in parse_all(files, parse, on_bad) if q and split in (None, q.split)]
    if not questions:
        raise InputError(f"{path}: no questions" + (f" of split {split!r}; check its name" if split else ""))
    return questions


def read_pages(path: str | Path) -> list[Page]:
    """Pages with the keys url, title, text from a .jsonl(.gz) file, or the corpus file of a directory."""
    file = corpus_file(Path(path)) if Path(path).is_dir() else Path(path)
    if file is None:
        raise InputError(f"{path}: no {' or '.join(CORPUS_FILES)} in this directory")
    return parse_all([file], lambda row, _: Page(text(row, "url"), text(row, "title"), text(row, "text")))


def split_of(file: Path) -> str:
    """The split of a file's rows that name none: "dev", "sft" or "train", by the words of its name."""
    name = str(file) if str(file).startswith(HUB) else file.name
    words = set(re.split(r"[^a-z]+", name.lower()))
    return "dev" if _HELD_OUT & words else "sft" if "sft" in words else "train"
