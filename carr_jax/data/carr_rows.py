"""Questions of CaRR and DeepDive, and of WebShaper: rubrics are given, or their formal counterpart is.

    rollout rows    {"input_messages": [...], "label": ..., "metadata": {"remote_env_info": {...}}}: as the
                    public CaRR code has them, with rubrics for training, and DeepDive's converter
    flat rows       {"question": ..., "answer": ..., "rubrics": [...]}, such as the sets on the hub
    formalizations  {"question", "answer", "formalization": [[subject, relation, object], ...], "urls": [...]}:
                    WebShaper, `V@X` the answer, `V@Y` a further variable, `C@Oslo` a constant

These rubrics have placeholders only: nobody wrote down what the hidden entities are called.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from carr_jax.data.files import Row, text, texts
from carr_jax.records import Question, Rubric
from carr_jax.rewards.history import asked, environment_of

_EVALUATION = "_eval"  # the end of a rollout row's source when it is not for training
_ENVIRONMENT = ("remote_env_info", "search_forbidden_strs", "forbidden_texts", "rubrics")
_QUESTION = (
    "id question answer label answer_aliases answer_type rubrics entities gold_urls hops source split".split()
)
_HEAVY = ("conversations", "tools", "input_messages", "history")  # traces and schemas are no part of a question
_TERM = re.compile(r"\s*([VC])@(.+?)\s*", re.DOTALL)
_ANSWER = "X"


def from_rollout_row(row: Row, split: str) -> Question:
    """A row of the public training and evaluation files.

    A row without an id gets one from its text, so that the copies of a question in an evaluation file are one
    question.  Raises KeyError, TypeError or ValueError that says what is wrong.
    """
    environment = environment_of(row)
    question = asked(environment, row["input_messages"])
    source = str(row.get("source") or "carr")
    kept = {key: value for key, value in (row.get("metadata") or {}).items() if key not in _ENVIRONMENT}
    kept |= {key: value for key, value in environment.items() if key not in _ENVIRONMENT}
    return _question(
        {**row, "question": question, "answer": row["label"], "source": source},
        split="dev" if source.endswith(_EVALUATION) else split,
        rubrics=_rubrics(environment.get("rubrics") or []),
        metadata=kept,
    )


def from_flat_row(row: Row, split: str) -> Question:
    """A row with question and answer; what else it has is kept in the question's metadata.

    Raises KeyError, TypeError or ValueError that says what is wrong.
    """
    source = "deepdive" if "conversations" in row else "flat"
    kept = {key: value for key, value in row.items() if key not in (*_QUESTION, *_HEAVY, "metadata")}
    kept |= row.get("metadata") or {}
    return _question(
        {"source": source, **row},
        split=row.get("split", split),
        rubrics=_rubrics(row.get("rubrics") or []),
        metadata=kept,
    )


def from_formalization(row: Row, split: str) -> Question:
    """A row of WebShaper: each triple with a variable is a rubric.

    Raises ValueError for a triple of another form, or when no triple has the answer `V@X`.
    """
    triples = row["formalization"]
    if isinstance(triples, str):
        triples = json.loads(triples)
    places = {_ANSWER: "<E0>"}
    rubrics = [rubric for triple in triples if (rubric := _rubric_of(triple, places))]
    if not any("<E0>" in rubric.text for rubric in rubrics):
        raise ValueError(f"no triple has the answer V@{_ANSWER}")
    return _question(
        {"source": "webshaper", **row, "gold_urls": row.get("urls", [])},
        split=split,
        rubrics=tuple(rubrics),
        metadata={"formalization": triples},
    )


def _rubric_of(triple: Any, places: dict[str, str]) -> Rubric | None:
    """A statement, `places` growing with the variables it meets; None when it has no variable to look for."""
    if not isinstance(triple, list) or len(triple) != 3 or not all(isinstance(part, str) for part in triple):
        raise ValueError(f"a triple must be three texts, got {triple!r:.80}")
    terms = [_TERM.fullmatch(part) for part in (triple[0], triple[2])]
    if not all(terms):
        raise ValueError(f"a term must begin with V@ or C@, got {triple!r:.80}")
    if all(term[1] == "C" for term in terms):
        return None
    subject, object = (
        places.setdefault(term[2], f"<E{len(places)}>") if term[1] == "V" else term[2] for term in terms
    )
    return Rubric(f'The "{triple[1].strip()}" of {subject} is {object}.')


def _rubrics(raw: Any) -> tuple[Rubric, ...]:
    """From texts, or from our own records."""
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise TypeError(f"rubrics must be a list, got {type(raw).__name__}")
    return tuple(map(_rubric, raw))


def _rubric(raw: Any) -> Rubric:
    row = raw if isinstance(raw, Mapping) else {"text": raw}
    urls = texts("support_urls", list(row.get("support_urls", ())))
    return Rubric(text(row, "text"), urls, row.get("relation", "fact"))


def _question(row: Row, split: str, rubrics: tuple[Rubric, ...], metadata: Mapping[str, Any]) -> Question:
    """The question of a row whose own keys are those of our record, as far as it has them."""
    answer = row["answer"]
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        row = {**row, "answer": str(answer)}
    entities = row.get("entities") or {}
    question, answer = text(row, "question"), text(row, "answer")
    return Question(
        id=str(row["id"]) if row.get("id") not in (None, "") else _id(row["source"], question, answer),
        question=question,
        answer=answer,
        answer_aliases=texts("answer_aliases", row.get("answer_aliases", [])),
        answer_type=row.get("answer_type", "entity"),
        rubrics=rubrics,
        entities={key: texts(f"entities {key}", names) for key, names in entities.items()},
        gold_urls=texts("gold_urls", row.get("gold_urls", [])),
        hops=row.get("hops", 0),
        source=text(row, "source"),
        split=split,
        metadata=json.loads(json.dumps(metadata, allow_nan=False)),
    )


def _id(source: str, question: str, answer: str) -> str:
    """A name that follows from the text alone."""
    return f"{source}-{hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()[:12]}"
