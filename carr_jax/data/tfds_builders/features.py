"""Questions and histories as flat examples, and back without loss.

TFDS writes a list of records without TensorFlow, but no list in such a list: what is nested deeper (the support
URLs of a rubric, the names of an entity, arguments of a call) is JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from carr_jax.data.conversations import History, Message
from carr_jax.records import Question, Rubric, ToolCall
from carr_jax.stored import to_json

Example = Mapping[str, Any]
_PLAIN = ("id", "question", "answer", "answer_type", "source", "split")
_JSON = _TEXT = tfds.features.Text()

QUESTION = tfds.features.FeaturesDict(
    {
        "id": _TEXT,
        "question": _TEXT,
        "answer": _TEXT,
        "answer_aliases": tfds.features.Sequence(_TEXT),
        "answer_type": _TEXT,
        "rubrics": tfds.features.Sequence({"text": _TEXT, "relation": _TEXT, "support_urls": _JSON}),
        "entities": tfds.features.Sequence({"id": _TEXT, "names": _JSON}),
        "gold_urls": tfds.features.Sequence(_TEXT),
        "hops": np.int32,
        "source": _TEXT,
        "split": _TEXT,
        "metadata": _JSON,
    }
)
HISTORY = tfds.features.FeaturesDict(
    {
        "id": _TEXT,
        "question": _TEXT,
        "answer": _TEXT,
        "messages": tfds.features.Sequence(
            {"role": _TEXT, "content": _TEXT, "reasoning_content": _TEXT, "tool_calls": _JSON}
        ),
        "tools": _JSON,
    }
)


def question_example(question: Question) -> Example:
    """A question as TFDS writes it; by hand, as it is made again for the checksum of a set that is opened."""
    rubrics = [
        {"text": rubric.text, "relation": rubric.relation, "support_urls": _dumped(rubric.support_urls)}
        for rubric in question.rubrics
    ]
    return {
        **{name: getattr(question, name) for name in (*_PLAIN, "hops")},
        "answer_aliases": list(question.answer_aliases),
        "rubrics": rubrics,
        "entities": [{"id": id, "names": _dumped(names)} for id, names in question.entities.items()],
        "gold_urls": list(question.gold_urls),
        "metadata": _dumped(question.metadata),
    }


def question_of(example: Example) -> Question:
    """Inverse of `question_example`, of what TFDS reads: texts are bytes, lists of records are columns."""
    rubrics = zip(
        *(_texts(example["rubrics"][key]) for key in ("text", "support_urls", "relation")), strict=True
    )
    entities = zip(*(_texts(example["entities"][key]) for key in ("id", "names")), strict=True)
    return Question(
        **{name: example[name].decode() for name in _PLAIN},
        answer_aliases=_texts(example["answer_aliases"]),
        rubrics=tuple(Rubric(text, tuple(json.loads(urls)), relation) for text, urls, relation in rubrics),
        entities={id: tuple(json.loads(names)) for id, names in entities},
        gold_urls=_texts(example["gold_urls"]),
        hops=int(example["hops"]),
        metadata=json.loads(example["metadata"]),
    )


def history_example(history: History) -> Example:
    """A history as TFDS writes it."""
    row = to_json(history)
    messages = [{**message, "tool_calls": _dumped(message["tool_calls"])} for message in row["messages"]]
    return {**row, "messages": messages, "tools": _dumped(row["tools"])}


def history_of(example: Example) -> History:
    """Inverse of `history_example`, of what TFDS reads."""
    keys = ("role", "content", "reasoning_content", "tool_calls")
    columns = zip(*(_texts(example["messages"][key]) for key in keys), strict=True)
    messages = (Message(role, content, thought, _calls(calls)) for role, content, thought, calls in columns)
    plain = {key: example[key].decode() for key in ("id", "question", "answer")}
    return History(**plain, messages=tuple(messages), tools=tuple(json.loads(example["tools"])))


def _calls(text: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call["name"], call["arguments"]) for call in json.loads(text))


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value.decode() for value in values)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
