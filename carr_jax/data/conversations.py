"""Traces of expert agents as messages, for supervised fine-tuning, from whatever shape they come in.

    ours        {"question": {...}, "trajectory": {...}}: a line of trajectories/step_NNNNNN.jsonl.gz
    histories   {"messages" or "history": [...]}: the public CaRR code's, with reasoning_content and tool_calls,
                or OpenAI's; beside them question and answer, or label and remote_env_info
    DeepDive    {"question", "answer", "conversations": [{"role", "content"}]} of the split trajectories_sft

Text of an assistant may hold its thought and calls as Qwen3's template writes them; they are taken apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carr_jax.data.files import Row, data_files, parse_all, text
from carr_jax.data.frozen import check_frozen
from carr_jax.records import InputError, Question, ToolCall, Trajectory
from carr_jax.rewards.history import asked, environment_of, read_call
from carr_jax.stored import question_from_json, trajectory_from_json

ROLES = ("system", "user", "assistant", "tool")
_THOUGHT = re.compile(r"\A\s*(?:<think>)?\s*(.*?)\s*</think>\s*", re.DOTALL)
_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_RESPONSES = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)
_BROKEN = ("ill_formed_content", "truncated_content", "aborted_content")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Message:
    """One message.  That of a tool answers one call: the k-th after a turn belongs to the turn's k-th call."""

    role: str
    content: str
    reasoning_content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class History:
    """A conversation from the user's question to the assistant's answer.

    `question` is the bare text, without a request for a format; `answer` the gold answer, "" when unknown.
    `tools` are the schemas that the agent was shown, () when the row has none.
    """

    id: str
    question: str
    answer: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


def read_histories(path: str | Path) -> list[History]:
    """The histories of a file, or of all data files of a folder.

    Raises InputError with file, line and reason of the bad rows.  Bad is also what nobody should learn from: a
    turn that is ill-formed, cut off or aborted, a call without output, an end that is no answer.
    """
    files = data_files(Path(path))
    for file in files:
        check_frozen(file)
    found = parse_all(files, history_from_row)
    if not found:
        raise InputError(f"{path}: no histories")
    return found


def history_from_row(row: Row, place: str = "") -> History:
    """One row in any of the shapes; `place` is its id when it has none.

    Raises KeyError, TypeError or ValueError that says what is wrong.
    """
    if "trajectory" in row:
        return _from_trajectory(question_from_json(row["question"]), trajectory_from_json(row["trajectory"]))
    key = next((k for k in ("messages", "history", "conversations") if k in row), None)
    if key is None:
        raise ValueError('a row needs the key "messages", "history", "conversations" or "trajectory"')
    if not isinstance(row[key], list) or not row[key]:
        raise TypeError(f"{key} must be a list of messages, got {row[key]!r:.80}")
    messages = tuple(_messages(row[key]))
    _check(messages)
    question = text(row, "question") if "question" in row else asked(environment_of(row), row[key])
    answer = row.get("answer", row.get("label"))
    tools = _tools(row.get("tools") or ())
    return History(str(row.get("id", place)), question, "" if answer is None else str(answer), messages, tools)


def _from_trajectory(question: Question, trajectory: Trajectory) -> History:
    messages = [Message("user", question.question)]
    for turn in trajectory.turns:
        if turn.ill_formed:
            raise ValueError(f"a turn is ill-formed: {turn.ill_formed}")
        calls = tuple(replace(call, result=None) for call in turn.calls)
        messages.append(Message("assistant", turn.content, turn.thought, calls))
        messages += [Message("tool", call.result.output) for call in turn.calls if call.result]
    _check(messages)
    return History(question.id, question.question, question.answer, tuple(messages))


def _check(messages: Sequence[Message]) -> None:
    """Raises ValueError unless it is one question and its way to an answer."""
    if sum(m.role == "user" for m in messages) != 1:
        raise ValueError("a history must hold one message of the user, the question")
    last = messages[-1]
    if last.role != "assistant" or last.tool_calls or not last.content.strip():
        raise ValueError("the last message is no answer of the assistant")


# ----------------------------------------------------------------------------------------------------- messages


def _messages(raw: Sequence[Row]) -> Iterator[Message]:
    """The messages, the outputs of a turn in the order of its calls."""
    waiting: dict[str, str | None] = {}  # call id -> output, in the order of the calls
    for one in raw:
        if not isinstance(one, Mapping):
            raise TypeError(f"a message must be an object, got {type(one).__name__}")
        if outputs := _outputs(one):
            for id, output in outputs:
                _answer(waiting, id, output)
            continue
        yield from _answered(waiting)
        message, ids = _message(one)
        waiting = dict.fromkeys(ids)
        if len(waiting) < len(ids):
            raise ValueError("two calls of a turn have the same id")
        yield message
    yield from _answered(waiting)


def _answer(waiting: dict[str, str | None], id: str | None, output: str) -> None:
    """Gives an output to its call; without an id to the first that has none."""
    key = id if id is not None else next((k for k, v in waiting.items() if v is None), None)
    if key not in waiting or waiting[key] is not None:
        raise ValueError(f"a tool output belongs to no call: {output!r:.80}")
    waiting[key] = output


def _answered(waiting: Mapping[str, str | None]) -> Iterator[Message]:
    for id, output in waiting.items():
        if output is None:
            raise ValueError(f"the tool call {id!r:.80} has no output")
        yield Message("tool", output)


def _outputs(one: Row) -> list[tuple[str | None, str]]:
    """(call id, output) of a message of tools, [] of another."""
    content = one.get("content")
    if one["role"] == "tool":
        entries = [{**one, "output": content}] if isinstance(content, str) else content
        return [_output(entry) for entry in entries]
    blocks = _RESPONSES.findall(content) if one["role"] == "user" and isinstance(content, str) else []
    return [(None, block) for block in blocks] if blocks and not _RESPONSES.sub("", content) else []


def _output(entry: Row) -> tuple[str | None, str]:
    if not isinstance(entry["output"], str):
        raise TypeError(f"output must be a text, got {type(entry['output']).__name__}")
    id = entry.get("tool_call_id")
    return None if id is None else str(id), entry["output"]


def _message(one: Row) -> tuple[Message, list[str]]:
    """A message that is no tool's, and the ids of its calls."""
    role = one["role"]
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}; known are {', '.join(ROLES)}")
    if broken := next((key for key in _BROKEN if one.get(key) is not None), None):
        raise ValueError(f"nobody should learn a turn with {broken}")
    thought, content = one.get("reasoning_content") or "", one.get("content") or ""
    if not isinstance(thought, str) or not isinstance(content, str):
        raise TypeError("content and reasoning_content must be texts")
    if role != "assistant":
        return Message(role, content), []
    if not thought and (match := _THOUGHT.match(content)):
        thought, content = match[1], content[match.end() :]
    calls = [read_call(call) for call in one.get("tool_calls") or ()]
    if not calls:
        content, calls = _written_calls(content)
    ids = [f"call {k}" if id == "None" else id for k, (id, _, _) in enumerate(calls, 1)]
    return Message(role, content, thought, tuple(ToolCall(name, args) for _, name, args in calls)), ids


def _written_calls(content: str) -> tuple[str, list[tuple[str, str, Row]]]:
    """What stands before the calls in a text, and the calls.  JSON is scanned: it may hold the closing tag."""
    before, *_ = content.partition(_CALL)
    calls, end = [], 0
    while (start := content.find(_CALL, end)) >= 0:
        if calls and content[end:start].strip():
            raise ValueError("text stands between two tool calls")
        start += len(_CALL)
        start += len(content[start:]) - len(content[start:].lstrip())
        call, end = _DECODER.raw_decode(content, start)
        after = content[end:].lstrip()
        if not after.startswith(_END_CALL):
            raise ValueError("a tool call is not closed")
        end = len(content) - len(after) + len(_END_CALL)
        calls.append(read_call(call))
    if calls and content[end:].strip():
        raise ValueError("text stands after a tool call")
    return (before.strip("\n") if calls else content), calls


def _tools(raw: Any) -> tuple[Mapping[str, Any], ...]:
    """Schemas in their flat form {name, description, parameters}, from that or from OpenAI's nested one."""
    if isinstance(raw, str):
        raw = json.loads(raw)
    tools = tuple(tool.get("function", tool) for tool in raw)
    for tool in tools:
        text(tool, "name")
    return tools
