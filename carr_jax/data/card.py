"""Dataset cards: a page beside every dataset that we make, for people, with a head that programs read.

The head is that of Hugging Face's cards (YAML between two lines of dashes).  What is not known is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carr_jax import __version__
from carr_jax.data.origins import licence, origins
from carr_jax.observe.files import atomic_file
from carr_jax.records import Question
from carr_jax.rewards.rubrics import entity_ids
from carr_jax.stored import file_sha256

Counts = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Card:
    """What a dataset is, and where it comes from.

    `made_by` is the command, `seed` None when nothing is drawn.  `counts` are tables of how often there is
    what: {"split": {"train": 781}}.  `facts` are further numbers and words of the maker.  `licence` is what
    somebody who passes the data on must keep; `credits` are one line for each origin.
    """

    title: str
    made_by: str
    seed: int | None = None
    counts: Counts = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    licence: str = ""
    credits: Sequence[str] = ()

    @classmethod
    def of_questions(cls, questions: Iterable[Question], title: str, made_by: str, **more: Any) -> Card:
        """A card with the counts of questions, and the licences and credits of the sets that they come from.

        `more` are further fields of the card, or other values of these.
        """
        questions = list(questions)
        sources = {question.source for question in questions}
        known = {
            "counts": count_questions(questions),
            "licence": licence(sources),
            "credits": [origin.credit for origin in origins(sources)],
        }
        return cls(title, made_by, **{**known, **more})


def card_of(file: Path) -> Path:
    """Where the card of a file or folder stands."""
    return file.with_name(file.name + ".card.md")


def count_questions(questions: Iterable[Question]) -> Counts:
    """How many questions there are of each split, source, length and answer type, with how many rubrics."""
    tables: dict[str, Counter] = {}
    for question in questions:
        values = {
            "split": question.split,
            "source": question.source or "unknown",
            "hops": question.hops or "unknown",
            "rubrics": len(question.rubrics),
            "hidden entities": len(entity_ids(question.rubrics)),
            "answer type": question.answer_type,
        }
        for name, value in values.items():
            tables.setdefault(name, Counter())[value] += 1
    return {name: _in_order(counter) for name, counter in tables.items()}


def write_card(file: Path, card: Card) -> Path:
    """Writes the card of `file` beside it, and returns where.  `file` may be a folder.

    The same file and card always give the same bytes: there is no date in it.
    """
    path = card_of(file)
    with atomic_file(path) as stream:
        stream.write(card_text(card, sha256_of(file)).encode())
    return path


def sha256_of(file: Path) -> Mapping[str, str]:
    """The SHA-256 of a file, or of every file of a folder, by name."""
    if not file.is_dir():
        return {file.name: file_sha256(file)}
    inside = sorted(path for path in file.rglob("*") if path.is_file())
    return {str(path.relative_to(file)): file_sha256(path) for path in inside}


def card_text(card: Card, sha256: Mapping[str, str]) -> str:
    """The card as Markdown."""
    parts = [_head(card), f"# {_line(card.title)}", _made(card)]
    parts += [_table(name, counter) for name, counter in card.counts.items()]
    if card.facts:
        parts.append(_table("what", card.facts, "value"))
    if card.licence or card.credits:
        lines = [f"- {_line(text)}" for text in card.credits]
        parts.append("\n".join(["## Licence and credits", "", _line(card.licence) or "Not known.", "", *lines]))
    parts.append(_table("file", sha256, "SHA-256"))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _head(card: Card) -> str:
    """JSON texts are YAML texts too, whatever they hold."""
    rows = {"pretty_name": _line(card.title), "task_categories": ["question-answering"], "tags": ["carr_jax"]}
    if card.licence:
        rows["license"] = _line(card.licence)
    if splits := card.counts.get("split"):
        rows["splits"] = [{"name": name, "num_examples": count} for name, count in splits.items()]
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in rows.items()), "---"])


def _made(card: Card) -> str:
    drawn = f", seed {card.seed}" if card.seed is not None else ""
    return f"Made by carr_jax {__version__}{drawn}:\n\n    {_line(card.made_by)}"


def _table(name: str, rows: Mapping[Any, Any], value: str = "count") -> str:
    lines = (f"| {_cell(key)} | {_cell(said)} |" for key, said in rows.items())
    return "\n".join([f"| {name} | {value} |", "| --- | ---: |", *lines])


def _cell(value: Any) -> str:
    """Text in a table: what came with data can break neither the line nor the cell."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return _line(value).replace("|", "\\|")


def _line(value: Any) -> str:
    return " ".join(str(value).split())


def _in_order(counter: Mapping[Any, int]) -> dict[str, int]:
    """By number, then by name."""
    keys = sorted(counter, key=lambda key: (isinstance(key, str), key))
    return {str(key): counter[key] for key in keys}
