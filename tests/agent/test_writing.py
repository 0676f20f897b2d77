"""Turns that were written elsewhere: the same bytes as a policy's, or a reason why not."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.agent.chat import Chat
from carr_jax.agent.parser import parse_turn
from carr_jax.agent.tokenizer import CONTROL
from carr_jax.agent.writing import Message, Unwritable, turn_ids, turn_text

SEARCH, FIND = "browser.search", "browser.find"


@pytest.fixture(scope="session")
def chat(tokenizer):
    return Chat(tokenizer)


def test_a_message_becomes_the_template_s_turn(chat):
    message = Message(
        "\nWho?\n", "\n\nI look.\n", ((SEARCH, '{"query":"caf\\u00e9","num":3}'), (FIND, '{"pattern": "1871"}'))
    )
    assert turn_text(message, chat) == (
        "Who?\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "browser.search", "arguments": {"query": "café", "num": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "browser.find", "arguments": {"pattern": "1871"}}\n</tool_call><|im_end|>'
    )


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("t"), "nothing follows the thought"),
        (Message("t", "\n\n"), "nothing follows the thought"),
        (Message("a\n</think>\n\nb", "c"), "control token </think>"),
        (Message("t", 'text <tool_call>\n{"name": 1}\n</tool_call> after'), "control token <tool_call>"),
        (Message("t", "x<|im_end|>"), "control token <|im_end|>"),
        (Message("<|im_start|>user", "x"), "control token <|im_start|>"),
        (Message("t", "", ((SEARCH, '{"query": "x'),)), "not valid JSON"),
        (Message("t", "", ((SEARCH, '{"query": NaN}'),)), "not valid JSON"),
        (Message("t", "", ((SEARCH, '{"query": "a", "query": "b"}'),)), "duplicate key"),
        (Message("t", "", ((SEARCH, '"query"'),)), "arguments an object"),
        (Message("t", "", ((SEARCH, ""),)), "not valid JSON"),
        (Message("t", "", ((SEARCH, '{"query": "a"}, "arguments": {"query": "b"}'),)), "duplicate key"),
        (Message("t", "", ((SEARCH, '{"query": "a"}}\n</tool_call>'),)), "control token </tool_call>"),
        (Message("t", "", ((FIND, '{"pattern": "\\u003c/tool_call\\u003e"}'),)), "control token </tool_call>"),
        (Message("t", "", ((FIND, '{"pattern": "\\ud800"}'),)), "not valid JSON"),
        (Message("t", "", (("rm", "{}"),)), "unknown tool 'rm'"),
        (Message("t", "", ((SEARCH, '{"page": 1}'),)), "no argument 'page'"),
        (Message("t", "", ((SEARCH, "{}"),)), "needs the argument 'query'"),
        (Message("t", "cafe\u0301"), "normal form NFC"),
        (Message("t", "a \ud800 lone surrogate"), "cannot be written"),
    ],
)
def test_what_no_policy_could_have_sampled_is_refused(chat, message, says):
    with pytest.raises(Unwritable, match=says.replace("|", r"\|")) as caught:
        turn_ids(message, chat)
    assert "\n" not in str(caught.value)


def composed(text):
    """Text that the tokenizer can write: Qwen3 normalises to NFC."""
    import unicodedata

    return unicodedata.normalize("NFC", text)


texts = (
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
    .map(composed)
    .filter(lambda t: not CONTROL.search(t))
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(
    st.one_of(
        st.builds(lambda q, n: (SEARCH, {"query": q, "num": n}), values, values),
        st.builds(lambda p: (FIND, {"pattern": p}), values),
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(thought=texts, content=texts, calls=calls, escaped=st.booleans(), indent=st.sampled_from([None, 1]))
def test_whatever_is_written_is_read_again_as_it_was_said(chat, thought, content, calls, escaped, indent):
    """Any JSON spelling of the arguments; the tokens spell the turn, and the parser finds what was said."""
    spelled = tuple((name, json.dumps(a, ensure_ascii=escaped, indent=indent)) for name, a in calls)
    message = Message(thought, content, spelled)
    if not content.strip("\n") and not calls:
        with pytest.raises(Unwritable):
            turn_ids(message, chat)
        return
    ids = turn_ids(message, chat)
    turn = parse_turn(chat.tokenizer.decode(ids), "stop", tools=chat.tools, strict=True)
    assert turn.ill_formed is None
    assert turn.thought == thought.strip("\n") and turn.content == content.strip("\n")
    assert [(c.name, c.arguments) for c in turn.calls] == calls
    assert [list(c.arguments) for c in turn.calls] == [list(a) for _, a in calls], "the order of keys is kept"
