"""Histories: the same conversation in every shape gives the same messages; what nobody may learn is refused."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.agent.chat import render_turn
from carr_jax.data.conversations import History, Message, read_histories
from carr_jax.records import End, InputError, Question, ToolCall, ToolResult, Trajectory, Turn
from carr_jax.stored import to_json

SEARCH = {"name": "browser.search", "description": "", "parameters": {"type": "object", "properties": {}}}
# A conversation: turns of (thought, content, [(tool, arguments, output)]), the last thought, the answer.
SHORT = (
    [("I look.", "", [("browser.search", {"query": "é </tool_call>", "num": 3}, "[0] Title: A")])],
    "Now I know.",
    "## Exact Answer\nBo",
)


def messages_of(conversation):
    """What every shape must give."""
    turns, thought, answer = conversation
    messages = [Message("user", "Who?")]
    for turn_thought, content, calls in turns:
        made = tuple(ToolCall(name, arguments) for name, arguments, _ in calls)
        messages.append(Message("assistant", content, turn_thought, made))
        messages += [Message("tool", output) for _, _, output in calls]
    return (*messages, Message("assistant", answer, thought))


def reference(conversation):
    """The public code's history: arguments are texts, one tool message with an entry for each call."""
    turns, thought, answer = conversation
    history, count = [{"role": "user", "content": "Who?"}], 0
    for turn_thought, content, calls in turns:
        ids = [f"tool-call-{count + k}" for k, _ in enumerate(calls)]
        count += len(calls)
        made = [
            {"session_id": "s", "tool_call_id": id, "name": name, "arguments": json.dumps(arguments)}
            for id, (name, arguments, _) in zip(ids, calls, strict=True)
        ]
        turn = {"role": "assistant", "reasoning_content": turn_thought, "tool_calls": made}
        history.append(turn | ({"content": content} if content else {}))
        entries = [{"tool_call_id": id, "output": call[2]} for id, call in zip(ids, calls, strict=True)]
        history.append({"role": "tool", "content": entries})
    history.append({"role": "assistant", "reasoning_content": thought, "content": answer})
    info = {"search_forbidden_strs": ["Who?"]}
    return {"id": "h", "history": history, "label": "Bo", "metadata": {"remote_env_info": info}}


def openai(conversation):
    """Functions, one message for each output, here in the opposite order."""
    messages = []
    for message in reference(conversation)["history"]:
        if message["role"] == "tool":
            entries = reversed(message["content"])
            messages += [
                {"role": "tool", "tool_call_id": e["tool_call_id"], "content": e["output"]} for e in entries
            ]
            continue
        calls = [
            {"id": c["tool_call_id"], "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in message.get("tool_calls", ())
        ]
        messages.append({**message, "content": message.get("content"), "tool_calls": calls or None})
    tools = [{"type": "function", "function": SEARCH}]
    return {"id": "h", "messages": messages, "question": "Who?", "answer": "Bo", "tools": tools}


def written(conversation):
    """DeepDive's columns, with thoughts and calls in the text, as Qwen3's template writes them."""
    turns, thought, answer = conversation
    said = [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Who?"}]
    for turn_thought, content, calls in turns:
        made = [ToolCall(name, arguments) for name, arguments, _ in calls]
        said.append({"role": "assistant", "content": "<think>\n" + without_end(turn_thought, content, made)})
        blocks = "\n".join(f"<tool_response>\n{output}\n</tool_response>" for _, _, output in calls)
        said.append({"role": "user", "content": blocks})
    said.append({"role": "assistant", "content": "<think>\n" + without_end(thought, answer)})
    return {"id": "h", "question": "Who?", "answer": "Bo", "conversations": said}


def without_end(*turn):
    return render_turn(*turn).removesuffix("<|im_end|>")


def ours(conversation):
    turns, thought, answer = conversation
    made = [
        Turn(0, 0, t, content, tuple(ToolCall(n, a, ToolResult(o)) for n, a, o in calls))
        for t, content, calls in turns
    ]
    none = [np.zeros(0, kind) for kind in (np.int32, np.int8, np.float32, np.int32)]
    turns = (*made, Turn(0, 0, thought, answer))
    trajectory = Trajectory("h", 0, 0, *none, turns, End.ANSWERED, answer)
    return to_json({"question": Question("h", "Who?", "Bo"), "trajectory": trajectory})


def read(rows, name="h.jsonl"):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_histories(path)


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=9)
stripped = words.map(str.strip)
values = st.recursive(st.integers() | words | st.booleans(), lambda inner: st.lists(inner, max_size=2))
calls = st.tuples(st.just("browser.search"), st.dictionaries(words, values, max_size=2), stripped)
conversations = st.tuples(
    st.lists(st.tuples(stripped, stripped, st.lists(calls, min_size=1, max_size=3)), max_size=3),
    stripped.filter(bool),
    stripped.filter(bool),
)


@given(conversations)
@settings(max_examples=60, deadline=None)
def test_every_shape_gives_the_same_messages(conversation):
    expected = messages_of(conversation)
    found = read([shape(conversation) for shape in (reference, openai, ours)])
    for history in found:
        assert history.messages == expected
        assert (history.id, history.question, history.answer) == ("h", "Who?", "Bo")
    (text,) = read([written(conversation)])
    assert text.messages == (Message("system", "Use tools."), *expected)


def test_schemas_are_flat_and_optional():
    first, second = read([openai(SHORT), reference(SHORT)])
    assert (first.tools, second.tools) == ((SEARCH,), ())
    assert isinstance(first, History)


def bad(row, **last):
    history = [dict(m) for m in row["history"]]
    history[-1] |= last
    return {**row, "history": history}


GOOD = reference(SHORT)
BAD = {
    "needs the key": {"question": "Who?"},
    "list of messages": {**GOOD, "history": []},
    "no answer of the assistant": {**GOOD, "history": GOOD["history"][:-1]},
    "nobody should learn a turn with ill_formed_content": bad(GOOD, ill_formed_content="x"),
    "nobody should learn a turn with truncated_content": bad(GOOD, truncated_content="x"),
    "unknown role 'critic'": bad(GOOD, role="critic"),
    "has no output": {**GOOD, "history": [*GOOD["history"][:2], GOOD["history"][-1]]},
    "belongs to no call": {**GOOD, "history": [*GOOD["history"][:3], *GOOD["history"][2:]]},
    "one message of the user": {**GOOD, "history": [*GOOD["history"][:1], *GOOD["history"]]},
    "content and reasoning_content must be texts": bad(GOOD, content=["x"]),
    "Expecting": bad(GOOD, content="", tool_calls=[{"id": "1", "name": "x", "arguments": "{"}]),
    "text stands after a tool call": bad(
        GOOD, content='<tool_call>{"name": "x", "arguments": {}}</tool_call> so'
    ),
    "a tool call is not closed": bad(GOOD, content='<tool_call>{"name": "x", "arguments": {}}'),
}


@pytest.mark.parametrize("reason", BAD)
def test_what_nobody_should_learn_is_refused_with_its_line(reason):
    with pytest.raises(InputError, match=r"1 bad rows") as caught:
        read([GOOD, BAD[reason]])
    assert "h.jsonl:2: " in str(caught.value) and reason in str(caught.value)


@given(st.sampled_from(sorted(GOOD)), st.recursive(st.none() | st.integers() | words, st.lists, max_leaves=3))
@settings(max_examples=60, deadline=None)
def test_no_value_in_a_row_escapes_the_report(key, value):
    for row in ({**GOOD, key: value}, bad(GOOD, **{key: value}), bad(GOOD, tool_calls=value, content=value)):
        try:
            read([row])
        except InputError as error:
            assert str(error).startswith("1 bad rows")


def test_an_empty_file_has_no_histories():
    with pytest.raises(InputError, match="no histories"):
        read([])
