"""Trajectories of any shape as a question and what is to be scored.

    ours        {"question": {...}, "trajectory": {...}}: a line of trajectories/step_NNNNNN.jsonl.gz
    reference   {"history": [messages], "label": ..., "remote_env_info": {...}}: tool outputs are text;
                also with `metadata.remote_env_info`, tool calls in OpenAI's form, or as a dump of columns
    plain       {"question": ..., "answer": ..., "response": ..., "pages": [{"url", "title", "text"}]}

A trajectory that comes without tokens gets none: it can be scored, not trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from carr_jax.records import End, Question, Rubric, Seen, ToolCall, ToolResult, Trajectory, Turn
from carr_jax.rewards import reference
from carr_jax.rewards.urls import canonical_url
from carr_jax.stored import question_from_json, trajectory_from_json

Row = Mapping[str, Any]
Pair = tuple[Question, Trajectory]


def pairs(row: Row, name: str = "") -> Iterator[Pair]:
    """The questions and trajectories of one row: one, or several of a dump of columns.

    `name` is the id of a question that has none.  Raises KeyError, TypeError or ValueError that says what is
    wrong with the row.
    """
    if not isinstance(row, Mapping):
        raise TypeError(f"a row must be a JSON object, got {type(row).__name__}")
    if "trajectory" in row:
        yield question_from_json(row["question"]), trajectory_from_json(row["trajectory"])
    elif "history" in row:
        for sample, single in enumerate(_columns(row)):
            yield from_history(single, name, sample)
    elif "response" in row:
        yield from_plain(row, name)
    else:
        raise ValueError('a row needs the key "trajectory", "history" or "response"')


def _columns(row: Row) -> Iterator[Row]:
    """The single rows of a row whose every value is a list with one item for each sample."""
    if not row["history"] or not isinstance(row["history"][0], list):
        yield row
        return
    for sample, _ in enumerate(row["history"]):
        yield {key: values[sample] for key, values in row.items() if len(values) == len(row["history"])}


# --------------------------------------------------------------------------------------------------- questions


def from_plain(row: Row, name: str = "") -> Pair:
    """A question, a response, and the pages that were seen (a list, or texts by address)."""
    question = row["question"]
    if isinstance(question, Mapping):
        question = question_from_json(question)
    else:
        question = _question(_text(question, "question"), row["answer"], row, name)
    pages = row.get("pages", ())
    if isinstance(pages, Mapping):
        pages = [{"url": url, "text": text} for url, text in pages.items()]
    turn = Turn(0, 0, "", "", tuple(_opened(page) for page in pages))
    return question, _trajectory(question, (turn,), End.ANSWERED, _text(row["response"], "response"))


def from_history(row: Row, name: str = "", sample: int = 0) -> Pair:
    """A row of the reference: the request of its reward server, or a row of its dumps."""
    environment = environment_of(row)
    messages = row["history"]
    question = _question(asked(environment, messages), row["label"], environment, name)
    turns = read_messages(messages)
    end = _end(messages, bool(row.get("task_unfinished", False)))
    response = _text(messages[-1]["content"], "content") if end is End.ANSWERED else None
    return question, _trajectory(question, turns, end, response, sample)


def environment_of(row: Row) -> Row:
    """`remote_env_info`, wherever a row has it."""
    found = row.get("remote_env_info", (row.get("metadata") or {}).get("remote_env_info"))
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise TypeError(f"remote_env_info must be an object, got {type(found).__name__}")
    return found


def asked(environment: Row, messages: Sequence[Row]) -> str:
    """The bare question: the first forbidden text, or the user's message without its request for a format."""
    for key in ("search_forbidden_strs", "forbidden_texts"):
        if environment.get(key):
            return _text(environment[key][0], key)
    first = next((m for m in messages if m.get("role") == "user"), None)
    if first is None:
        raise ValueError("neither remote_env_info.search_forbidden_strs nor a user message has the question")
    text = _text(first["content"], "content")
    before, heading, _ = text.partition("## Explanation with Citations")
    return before.rstrip().rpartition("\n\n")[0].strip() or before.strip() if heading else text.strip()


def _question(text: str, answer: Any, row: Row, name: str) -> Question:
    """Rubrics are texts or records; `entities`, the gold names by placeholder, may be missing."""
    rubrics = row.get("rubrics") or ()
    if not isinstance(rubrics, list | tuple):
        raise TypeError(f"rubrics must be a list, got {type(rubrics).__name__}")
    entities = {key: tuple(names) for key, names in (row.get("entities") or {}).items()}
    answer = str(answer) if isinstance(answer, int | float) else _text(answer, "answer or label")
    aliases = tuple(row.get("answer_aliases") or ())
    return Question(
        str(row.get("id") or name),
        text,
        answer,
        aliases,
        str(row.get("answer_type") or "entity"),
        tuple(map(_rubric, rubrics)),
        entities or {"E0": (answer, *aliases)},
    )


def _rubric(rubric: Any) -> Rubric:
    if isinstance(rubric, Mapping):
        return Rubric(_text(rubric["text"], "rubric"), tuple(rubric.get("support_urls") or ()))
    return Rubric(_text(rubric, "rubric"))


def _trajectory(
    question: Question, turns: tuple[Turn, ...], end: End, response: str | None, sample: int = 0
) -> Trajectory:
    none = [np.zeros(0, kind) for kind in (np.int32, np.int8, np.float32, np.int32)]
    return Trajectory(question.id, sample, 0, *none, turns, end, response)


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{key} must be a text, got {type(value).__name__}")
    return value


# ---------------------------------------------------------------------------------------------------- messages


def _end(messages: Sequence[Row], unfinished: bool) -> End:
    """How the episode ended.  Only the assistant's last word is an answer (AM-09); an abort is no failure."""
    last = messages[-1] if messages else {}
    if last.get("aborted_content") is not None:
        return End.ENGINE_ERROR
    if unfinished or last.get("truncated_content") is not None:
        return End.CONTEXT_BUDGET
    if last.get("role") != "assistant" or not last.get("content") or last.get("tool_calls"):
        return End.FORMAT_ERROR
    return End.ANSWERED


def read_messages(messages: Sequence[Row]) -> tuple[Turn, ...]:
    """The assistant's turns, each call with its output and what it showed of which page.

    Raises ValueError for an output that belongs to no call, TypeError or KeyError for messages of another form.
    """
    outputs = dict(_outputs(messages))
    browser = _Browser()
    turns = []
    for message in messages:
        if message["role"] != "assistant":
            continue
        calls = []
        for call in message.get("tool_calls") or ():
            key, name, arguments = read_call(call)
            output = outputs.pop(key, None)
            seen = browser.see(name, arguments, output or "")
            calls.append(ToolCall(name, arguments, None if output is None else ToolResult(output, seen)))
        ill_formed = "; ".join(map(str, message.get("ill_formed_reasons") or ())) or None
        texts = (message.get(key) or "" for key in ("reasoning_content", "content"))
        turns.append(Turn(0, 0, *map(str, texts), tuple(calls), ill_formed))
    if outputs:
        raise ValueError(f"a tool output belongs to no call: tool_call_id {next(iter(outputs))!r:.80}")
    return tuple(turns)


def _outputs(messages: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(call id, output) of all tool messages; an answer to an ill-formed call has no id and shows no page."""
    for message in messages:
        if not isinstance(message, Mapping):
            raise TypeError(f"a message must be an object, got {type(message).__name__}")
        if message["role"] != "tool":
            continue
        content = message["content"]
        entries = [{**message, "output": content}] if isinstance(content, str) else content
        for entry in entries:
            if entry.get("tool_call_id") is not None:
                yield str(entry["tool_call_id"]), _text(entry["output"], "output")


def read_call(call: Row) -> tuple[str, str, Row]:
    """(id, tool, arguments) of a call in the reference's form or in OpenAI's."""
    function = call.get("function", call)
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(arguments, Mapping):
        raise TypeError(f"arguments of a call must be an object, got {type(arguments).__name__}")
    return str(call.get("tool_call_id", call.get("id"))), _text(function["name"], "name"), arguments


# ------------------------------------------------------------------------------------------------ tool outputs

_BLOCK = re.compile(
    r"^\[(\d+)\] Title:([^\n]*)\n\[\1\] URL Source:([^\n]*)\n\[\1\] Description:"
    r"([^\n]*(?:\n(?!\[\d+\] Title:)[^\n]*)*)",
    re.MULTILINE,
)
_MATCH = re.compile(r"^\[Match \d+\]\n", re.MULTILINE)


@dataclass
class _Browser:
    """What a session remembers, followed along its outputs: the latest results and the open page."""

    results: tuple[Seen, ...] = ()
    page: Seen | None = None

    def see(self, name: str, arguments: Row, output: str) -> tuple[Seen, ...]:
        """The pieces of pages that a call showed; () for an error's text and for another tool."""
        tool = name.rpartition(".")[2]
        if tool == "search":
            self.results = tuple(_snippets(output))
            return self.results
        if tool == "open":
            self.page = _page(output, self._target(arguments.get("id")))
            return (self.page,) if self.page else ()
        if tool == "find" and self.page:
            texts = dict.fromkeys(text.strip() for text in _MATCH.split(output)[1:])
            return tuple(replace(self.page, kind="match", text=text) for text in texts)
        return ()

    def _target(self, wanted: Any) -> str:
        """The address that was asked for, by number in the latest results or written out."""
        text = str(wanted).strip()
        if text.isascii() and text.isdigit() and len(text) < 10:
            number = int(text)
            return self.results[number].url if number < len(self.results) else ""
        return wanted if isinstance(wanted, str) else ""


def _snippets(output: str) -> Iterator[Seen]:
    """One piece for each result block, with or without a date."""
    for number, title, url, shown in _BLOCK.findall(output):
        text = shown.strip()
        before, dated, date = text.rpartition(f"\n[{number}] Date:")
        yield Seen(url.strip(), title.strip(), "snippet", before if dated and "\n" not in date else text)


def _page(output: str, wanted: str) -> Seen | None:
    """The page that an open showed; None for what is not laid out as a page, such as an error."""
    shown = reference.opened_page(output)
    if not shown.url or "Markdown Content:" not in output:
        return None
    redirected = wanted and canonical_url(wanted) != canonical_url(shown.url)
    return Seen(shown.url, shown.title, "page", shown.text, wanted if redirected else "")


def _opened(page: Row) -> ToolCall:
    """The call that would have shown a page."""
    url, title, text = page["url"], page.get("title") or "", _text(page["text"], "text")
    output = f"Title: {title}\n\nURL Source: {url}\n\nMarkdown Content:\n{text}"
    return ToolCall(reference.OPEN, {"id": url}, ToolResult(output, (Seen(url, title, "page", text),)))
