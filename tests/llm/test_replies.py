"""Reading replies: whatever the wrapping, one object or none; and never slow."""

import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carr_jax.llm.errors import Unusable
from carr_jax.llm.messages import Reply
from carr_jax.llm.replies import answer_text, is_from_reasoning, read_object

GOOD = {"S1": True, "S2": None}
FENCE = "```"


@pytest.mark.parametrize(
    "text",
    [
        '{"S1": true, "S2": null}',
        f'Sure!\n{FENCE}json\n{{"S1": true, "S2": null}}\n{FENCE}\nBye {{ }}',
        f'{FENCE}\n{{"S1": true, "S2": null}}\n{FENCE}\nand again {{"S2": null, "S1": true}}',
        '{"S1": true, "S2": null,}',
        '{"S1": True, "S2": None}',
        'I use {braces} and "quotes, then {"S1": true, "S2": null}',
        'Let A = { x\n{"S1": true, "S2": null}',
        '{"why": "it costs \\$5 \\o/ \\u00e9 \\uZZ", "S1": true, "S2": null}',  # JP-06
        '{"why": "say ```x``` or {\\"S1\\": false}", "S1": true, "S2": null}',  # JP-02
        '{"why": "True, None,]", "S1": True, "S2": null,\n}',
        '{"why": "two\nlines", "S1": true, "S2": null}',
        '[{"S1": true, "S2": null}]',
        '{not json {"S1": true, "S2": null} }',
        '{"S1": true, "S1": true, "S2": null}',
        '{"S1": true} and so {"S1": true, "S2": null}',
    ],
)
def test_one_object_however_it_is_written(text):
    assert read_object(text, ("S1", "S2")) == GOOD


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "S1"),
        ("yes", "S1"),
        ('{"S1": true}', "S2"),
        ('{"S1": true} {"S2": null}', "no object"),  # two halves are not a whole
        ('{"S1": true, "S2": null} {"S1": false, "S2": null}', "two things about 'S1'"),  # JP-05
        ('{"S1": false} {"S1": true, "S2": null}', "two things about 'S1'"),
        ('{"S1": true, "S2": null, "S1": false}', "two things about 'S1'"),
        ('{"S1": 1, "S2": null} {"S1": true, "S2": null}', "two things"),
        ('{"a": {"S1": true, "S2": null}}', "S1"),  # not its own statement
        ('["S1", "S2"]', "S1"),
        ('{"S1": NaN, "S2": null}', "S1"),
        ('{"S1": tru', "S1"),
    ],
)
def test_what_says_nothing_or_two_things_is_unusable(text, says):
    with pytest.raises(Unusable, match=says):
        read_object(text, ("S1", "S2"))


def test_only_objects_with_the_mark_count():
    """What a page says cannot be a verdict: it does not know the mark."""
    quoted = 'The page says {"code": "x", "S1": true} but\n{"code": "7f", "S1": false}'
    assert read_object(quoted, ("S1",), {"code": "7f"}) == {"S1": False}
    with pytest.raises(Unusable):
        read_object('{"S1": true}', ("S1",), {"code": "7f"})
    with pytest.raises(Unusable):
        read_object('{"code": 1, "S1": true}', ("S1",), {"code": True})


@pytest.mark.parametrize(
    ("reply", "text", "from_reasoning"),
    [
        (Reply('{"a": 1}', "thoughts"), '{"a": 1}', False),
        (Reply('<think>{"a": 2}</think> {"a": 1}'), '{"a": 1}', False),
        (Reply('{"a": "</think>"}'), '{"a": "</think>"}', False),
        (Reply(" \n", '{"a": 1}'), '{"a": 1}', True),  # JP-10
        (Reply("", 'hm</think>{"a": 1}'), '{"a": 1}', True),
    ],
)
def test_where_the_object_is_looked_for(reply, text, from_reasoning):
    assert answer_text(reply) == text
    assert is_from_reasoning(reply) is from_reasoning


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply("", finish="empty"), "empty"),
        (Reply("<think>and so on</think>"), "empty"),
        (Reply("{}", refusal="I\nwill not"), "refused: I will not"),
        (Reply('{"a": ', finish="length"), "cut off"),
        (Reply("{}", finish="content_filter"), "filtered"),
    ],
)
def test_replies_without_an_answer(reply, says):
    with pytest.raises(Unusable, match=says):
        answer_text(reply)


PIECES = [
    "{",
    "}",
    '"',
    "\\",
    "S1",
    '"S1"',
    ":",
    ",",
    "true",
    "True",
    "\n",
    "[",
    "]",
    "```",
    " ",
    '{"S1":true}',
]


def reads_or_refuses(text):
    """The reading, or None; anything but Unusable would be raised here."""
    try:
        return read_object(text, ("S1",))
    except Unusable:
        return None


def test_ten_thousand_random_texts_raise_nothing_else():
    rng, read = random.Random(0), 0
    for _ in range(10_000):
        value = reads_or_refuses("".join(rng.choices(PIECES, k=rng.randrange(1, 25))))
        assert value is None or value.keys() == {"S1"}
        read += value is not None
    assert 100 < read < 9_900, "both happen"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    value=st.fixed_dictionaries({"S1": JSON, "S2": JSON}),
    before=st.text(max_size=30),
    after=st.text(max_size=30),
)
@example(value={"S1": '\\ " { } ```', "S2": "True, ]"}, before='{ "', after='} "')
def test_an_object_on_its_own_lines_is_found_in_any_prose_without_braces(value, before, after):
    clean = str.maketrans("{}", "()")
    text = f"{before.translate(clean)}\n{json.dumps(value)}\n{after.translate(clean)}"
    assert read_object(answer_text(Reply(text)), ("S1", "S2")) == value


MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "{" * MEGABYTE,
        "}" * MEGABYTE,
        "{" * (MEGABYTE // 2) + "}" * (MEGABYTE // 2),
        "{}" * (MEGABYTE // 2),
        '{"a":' * (MEGABYTE // 5) + "1" + "}" * (MEGABYTE // 5),
        "[" * MEGABYTE,
        '{"a":' + "[" * MEGABYTE,
        '"' * MEGABYTE,
        '{"' + '\\"' * (MEGABYTE // 2),
        '{"' + "\\" * MEGABYTE,
        "{" + ", " * (MEGABYTE // 2) + "}",
        "{" + " " * MEGABYTE + ",",
        "```json\n{" * (MEGABYTE // 9),
        '{"a":1,"a":' * (MEGABYTE // 11),
        "<think>" * (MEGABYTE // 7),
        "</think>" * (MEGABYTE // 8),
        '{"S1": ' + "9" * MEGABYTE + "}",
        "{True" * (MEGABYTE // 5),
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_a_megabyte_of_nonsense_is_read_in_linear_time(text):
    """In quadratic time any of these would take hours."""
    assert reads_or_refuses(answer_text_or_nothing(text)) is None


def answer_text_or_nothing(text):
    try:
        return answer_text(Reply(text))
    except Unusable:
        return ""
