import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.agent.chat import render_turn
from carr_jax.agent.parser import MAX_CALLS, MAX_DEPTH, parse_turn
from carr_jax.records import ToolCall

OPEN_THOUGHT = "t\n</think>\n\n"
FIND = '<tool_call>\n{"name": "browser.find", "arguments": {"pattern": "x"}}\n</tool_call>'


def call(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def search(arguments):
    return call(f'{{"name": "browser.search", "arguments": {arguments}}}')


# What a model emits after the prefilled think tag: (text, ill-formed if strict, ill-formed by default, ends).
TABLE = {
    "canonical call": (OPEN_THOUGHT + FIND + "<|im_end|>", False, False, False),
    "text before the call": (f"{OPEN_THOUGHT}I look.\n{FIND}<|im_end|>", False, False, False),
    "two calls": (f"{OPEN_THOUGHT}{FIND}\n{FIND}<|im_end|>", False, False, False),
    "float count": (OPEN_THOUGHT + search('{"query": "a", "num": 10.0}') + "<|im_end|>", False, False, False),
    "empty thought": ("\n</think>\n\nanswer<|im_end|>", False, False, True),
    "answer": (OPEN_THOUGHT + "answer<|im_end|>", False, False, True),
    "compact separators": (OPEN_THOUGHT + search('{"query":"a"}') + "<|im_end|>", True, False, False),
    "escaped letter": (OPEN_THOUGHT + search('{"query": "\\u00e9"}') + "<|im_end|>", True, False, False),
    "text after the call": (f"{OPEN_THOUGHT}{FIND}\nbye<|im_end|>", True, True, False),
    "text between calls": (f"{OPEN_THOUGHT}{FIND}\nand\n{FIND}<|im_end|>", True, True, False),
    "unknown argument": (OPEN_THOUGHT + search('{"query": "a", "page": 1}') + "<|im_end|>", True, True, False),
    "missing argument": (OPEN_THOUGHT + search('{"num": 10}') + "<|im_end|>", True, True, False),
    "body is not JSON": (OPEN_THOUGHT + call("query: a") + "<|im_end|>", True, True, False),
    "unknown tool": (OPEN_THOUGHT + call('{"name": "rm", "arguments": {}}') + "<|im_end|>", True, True, False),
    "no arguments": (OPEN_THOUGHT + call('{"name": "browser.find"}') + "<|im_end|>", True, True, False),
    "arguments are text": (
        OPEN_THOUGHT + call('{"name": "browser.find", "arguments": "{}"}') + "<|im_end|>",
        True,
        True,
        False,
    ),
    "call never closed": (OPEN_THOUGHT + FIND.removesuffix("</tool_call>") + "<|im_end|>", True, True, True),
    "no think tag": ("answer<|im_end|>", True, True, True),
    "think tag without its newlines": ("t</think>\n\nanswer<|im_end|>", True, True, True),
    "two think tags": (f"{OPEN_THOUGHT}{OPEN_THOUGHT}{FIND}<|im_end|>", True, True, True),
    "empty content": (OPEN_THOUGHT + "<|im_end|>", True, True, True),
    "newline before the end": (OPEN_THOUGHT + "answer\n<|im_end|>", True, True, True),
    "end of text": (OPEN_THOUGHT + "answer<|endoftext|>", True, True, True),
    "end of text after a call": (OPEN_THOUGHT + FIND + "<|endoftext|>", True, True, True),
}


@pytest.mark.parametrize(("text", "strict", "default", "ends"), TABLE.values(), ids=TABLE.keys())
def test_table_of_defects(text, strict, default, ends):
    turn = parse_turn(text, "stop", strict=True)
    assert ((turn.ill_formed is not None), turn.ends) == (strict, ends)
    turn = parse_turn(text, "stop")
    assert ((turn.ill_formed is not None), turn.ends) == (default, ends)
    assert turn.noncanonical == (strict and not default)


@pytest.mark.parametrize("finish", ["length", "abort"])
def test_a_cut_off_turn_is_no_format_error(finish):
    turn = parse_turn("a\n</think>\n\nhalf an ans", finish)
    assert (turn.thought, turn.content, turn.ill_formed) == ("a", "half an ans", None)
    assert parse_turn("still thinking", finish).thought == "still thinking"


plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
visible = plain.map(lambda s: s.strip("\n")).filter(lambda s: "<tool_call>" not in s and "</think>" not in s)
arguments = st.one_of(
    st.fixed_dictionaries({"query": plain}, optional={"num": st.integers(-3, 99) | st.just(10.0)}),
    st.fixed_dictionaries({"query": st.recursive(plain, lambda x: st.lists(x) | st.dictionaries(plain, x))}),
)
searches = arguments.map(lambda a: ToolCall("browser.search", a))


@settings(max_examples=150, deadline=None)
@given(thought=plain, content=visible, calls=st.lists(searches, max_size=3))
def test_rendered_turn_parses_back(thought, content, calls):
    if not content and not calls:
        content = "c"
    turn = parse_turn(render_turn(thought, content, calls), "stop", strict=True)
    assert turn.ill_formed is None and not turn.noncanonical
    assert (turn.thought, turn.content, turn.calls) == (thought, content, tuple(calls))
    assert [json.dumps(c.arguments) for c in turn.calls] == [
        json.dumps(c.arguments) for c in calls
    ]  # key order
    assert turn.ends == (not calls)


def test_argument_may_contain_the_closing_tag_and_nested_objects():
    calls = [ToolCall("browser.search", {"query": '"}\n</tool_call> {', "num": {"e": [{"n": "x"}]}})]
    assert parse_turn(render_turn("t", "", calls), "stop").calls == tuple(calls)


BAD_JSON = {
    "not a number": '{"query": NaN}',
    "infinite": '{"query": -Infinity}',
    "overflowing": '{"query": 1e999}',
    "duplicate key": '{"query": "a", "query": "b"}',
    "literal backslash-n": '{"query": \\n"a"}',
    "cut off": '{"query": "x',
    "very long number": '{"num": %s, "query": "a"}' % ("9" * 500),
    "nested too deeply": '{"query": %s}' % ("[" * MAX_DEPTH + "]" * MAX_DEPTH),
    "nested beyond the stack": '{"query": %s' % ("[" * 100_000),
    "lone surrogate": '{"query": "\\ud83d"}',
    "single quotes": "{'query': 'a'}",
    "code": '__import__("os").system("exit 1")',
}


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON.keys())
def test_bad_json_is_reported_and_its_neighbour_kept(body):
    turn = parse_turn(f"{OPEN_THOUGHT}{search(body)}\n{FIND}<|im_end|>", "stop")
    assert "not valid JSON" in turn.ill_formed and not turn.ends
    bad, good = turn.calls
    assert bad.result.error == "bad_call" and "not valid JSON" in bad.result.output
    assert good == ToolCall("browser.find", {"pattern": "x"})


def test_a_defect_outside_the_calls_is_told_to_every_call():
    turn = parse_turn(f"{OPEN_THOUGHT}{FIND}\n{FIND}\nbye<|im_end|>", "stop")
    assert [c.result.error for c in turn.calls] == ["bad_call", "bad_call"]


def test_extra_member_of_a_call_is_a_defect():
    body = call('{"name": "browser.find", "arguments": {"pattern": "x"}, "id": 1}')
    assert parse_turn(f"{OPEN_THOUGHT}{body}<|im_end|>", "stop").ill_formed


def test_a_datasets_own_tools_decide_what_is_known():
    tools = [{"name": "rm", "parameters": {"properties": {"f": {}}, "required": ["f"]}}]
    text = OPEN_THOUGHT + call('{"name": "rm", "arguments": {"f": 1}}') + "<|im_end|>"
    assert parse_turn(text, "stop", tools=tools).ill_formed is None
    assert parse_turn(OPEN_THOUGHT + FIND + "<|im_end|>", "stop", tools=tools).ill_formed


@pytest.mark.parametrize(
    "text",
    [
        OPEN_THOUGHT + "<tool_call>" * 200_000,
        OPEN_THOUGHT + '<tool_call>"</tool_call>' * 100_000,
        OPEN_THOUGHT + '<tool_call>{"a":' * 100_000,
        "\n</think>\n\n" * 200_000,
        OPEN_THOUGHT + (FIND + "\n") * 50_000,
    ],
)
def test_huge_garbage_comes_back_bounded(text):
    turn = parse_turn(text + "<|im_end|>", "stop")
    assert turn.ill_formed
    assert len(turn.calls) <= MAX_CALLS


pieces = [
    "\n</think>\n\n",
    "<tool_call>",
    "</tool_call>",
    "\n",
    '{"name": "browser.find"',
    "<|im_end|>",
    "{",
    '"',
    "[",
    "}",
]


@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(st.sampled_from(pieces) | st.text(max_size=3), max_size=12),
    finish=st.sampled_from(["stop", "length"]),
)
def test_no_text_makes_the_parser_raise(parts, finish):
    text = "".join(parts)
    turn = parse_turn(text, finish)
    assert turn.ends or turn.calls
    if finish == "stop" and turn.ill_formed is None and not turn.noncanonical:
        assert render_turn(turn.thought, turn.content, turn.calls) == text
