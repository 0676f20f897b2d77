"""Questions and pages from files.  `data.rows` tells the shapes of rows, `data.files` the kinds of files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from carr_jax.data.files import HUB, Row, parse_all, text
from carr_jax.data.frozen import check_frozen
from carr_jax.data.rows import question_from_row
from carr_jax.records import InputError, Page, Question

CORPUS_FILES = ("corpus.jsonl", "corpus.jsonl.gz")
_QUESTION_FILES = ("*.jsonl", "*.jsonl.gz", "*.parquet")
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
    is held out ("dev") when its file's name has the word dev, validation, test or eval, else for training.

    A row of ours with the answer "" is bad, unless `answers` is False: a question that only rubrics can judge.

    Bad rows, each as "file:line: reason", go to `on_bad`; without it they raise InputError, the first ten and
    how many there are.  So does a file that is not there, or was changed since it was frozen.
    """
    path = Path(path)
    files = _question_files(path)
    for file in files:
        check_frozen(file)
    corpus = _corpus_file(path if path.is_dir() else path.parent)
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
    file = _corpus_file(Path(path)) if Path(path).is_dir() else Path(path)
    if file is None:
        raise InputError(f"{path}: no {' or '.join(CORPUS_FILES)} in this directory")
    return parse_all([file], lambda row, _: Page(text(row, "url"), text(row, "title"), text(row, "text")))


def split_of(file: Path) -> str:
    """The split of a file's rows that name none: "dev" or "train", by the words of its name."""
    name = str(file) if str(file).startswith(HUB) else file.name
    return "dev" if _HELD_OUT & set(re.split(r"[^a-z]+", name.lower())) else "train"


def _question_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(_in_folder(path))
    if not files:
        raise InputError(f"{path}: no question files ({', '.join(_QUESTION_FILES)}) in this directory")
    return files


def _in_folder(folder: Path) -> Iterator[Path]:
    for pattern in _QUESTION_FILES:
        yield from (file for file in folder.glob(pattern) if file.name not in CORPUS_FILES)


def _corpus_file(folder: Path) -> Path | None:
    return next((folder / name for name in CORPUS_FILES if (folder / name).exists()), None)
