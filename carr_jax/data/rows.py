"""Which shape a row has, and the question in it.

ours                     `records.Question` as `stored.to_json` writes it
2Wiki, MuSiQue, Hotpot   with their evidence: `data.evidence`, `data.originals`
CaRR, DeepDive, flat     with rubrics or without, and WebShaper: `data.carr_rows`
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from carr_jax.data.carr_rows import from_flat_row, from_formalization, from_rollout_row
from carr_jax.data.evidence import SETS, from_evidence
from carr_jax.data.files import Row, text, texts
from carr_jax.data.originals import in_bundle_form, is_original
from carr_jax.records import Question
from carr_jax.rewards.lint import structure
from carr_jax.stored import question_from_json, to_json

_OURS = {field.name for field in dataclasses.fields(Question)}
ANSWER_TYPES = ("entity", "date", "number", "yesno")


def question_from_row(row: Row, urls: Mapping[str, str], split: str = "train") -> Question:
    """The question of a row; `urls` are addresses of pages by title, `split` is for rows that name none.

    Raises KeyError, TypeError, IndexError, AttributeError or ValueError that says what is wrong.
    """
    question = _read(row, urls, split)
    _check(question)
    return question


def _read(row: Row, urls: Mapping[str, str], split: str) -> Question:
    if row.get("dataset") in SETS or "support_titles" in row:
        return from_evidence(row, urls)
    if is_original(row):
        return from_evidence(in_bundle_form(row, split), urls)
    if "input_messages" in row:
        return from_rollout_row(row, split)
    if "formalization" in row:
        return from_formalization(row, split)
    return _ours(row) if _is_ours(row) else from_flat_row(row, split)


def _is_ours(row: Row) -> bool:
    """Our own rows have an id and a split, no other keys, and rubrics that are objects."""
    rubrics = row.get("rubrics", ())
    given = not isinstance(rubrics, list) or all(isinstance(rubric, dict) for rubric in rubrics)
    return "id" in row and "split" in row and row.keys() <= _OURS and given


def _ours(row: Row) -> Question:
    for key in ("id", "question", *(["answer"] if row["answer"] != "" else [])):  # "": nobody knows it
        text(row, key)
    lists = {key: row[key] for key in ("answer_aliases", "gold_urls") if key in row}
    lists |= {f"entities {key}": value for key, value in row.get("entities", {}).items()}
    for name, value in lists.items():
        texts(name, value)
    return question_from_json(row)


def _check(question: Question) -> None:
    """Raises ValueError for what no run can use: rubrics that never score, texts that no file can hold."""
    if question.answer_type not in ANSWER_TYPES:
        raise ValueError(f"answer_type must be {', '.join(ANSWER_TYPES)}, got {question.answer_type!r:.40}")
    if not isinstance(question.hops, int) or not 0 <= question.hops < 2**31:
        raise ValueError(f"hops must be a whole number, got {question.hops!r:.40}")
    if problems := structure(question):
        raise ValueError("; ".join(problems))
    json.dumps(to_json(question), ensure_ascii=False, allow_nan=False).encode()
