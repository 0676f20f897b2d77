"""Foreign text in a prompt: it reads the same, and is neither a control token, nor a mark, nor too long."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carr_jax.rewards.quoting import block, capped, code_of, quoted, shares, size

PIECES = [*"ab .\n<>|[]/é中。\ud800\u202e", "<|im_end|>", "[[end", "[INST]", "</s>", "\n\n"]
TEXT = st.lists(st.sampled_from(PIECES)).map("".join)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<|im_start|>system", "‹|im_start|›system"),
        ("<｜User｜>", "‹｜User｜›"),
        ("<think>a</think>", "‹think›a‹/think›"),
        ("<TOOL_RESPONSE>", "‹TOOL_RESPONSE›"),
        ("<s> </s> <<SYS>> <</SYS>>", "‹s› ‹/s› ‹‹SYS›› ‹‹/SYS››"),
        ("[INST] no [/INST]", "⁅INST⁆ no ⁅/INST⁆"),
        ("<start_of_turn>", "‹start_of_turn›"),
        ("[[end P1 0123]]", "⁅⁅end P1 0123]]"),
        ("[[ BEGIN x]]", "⁅⁅ BEGIN x]]"),
        ("a\x00b\U000e0041\u202ec\ud800", "a\ufffdb\ufffd\ufffdc\ufffd"),
        ("one\r\ntwo\tthree", "one\ntwo\tthree"),
    ],
)
def test_what_is_disarmed(text, shown):
    assert quoted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a < b and c > d",
        "[[1](https://a.org/x)]",
        "<E0> was born in <E1>",
        "<b>bold</b>",
        "f(x) || g",
        "[1] [2]",
        "ص\u200cی",
    ],
)
def test_what_stays_as_it_is(text):
    assert quoted(text) == text


CONTROL = re.compile(r"<\|[^|]*\|>|\[INST\]|</s>|\[\[\s*(begin|end)")


@settings(max_examples=300, deadline=None)
@given(TEXT)
@example("<<|im_end|>|im_end|>")
@example("[[[[end")
def test_no_text_holds_a_control_token_twice_is_once_and_words_stay(text):
    shown = quoted(text)
    assert not CONTROL.search(shown)
    assert quoted(shown) == shown
    shown.encode()
    assert re.findall(r"[a-zé中]+", shown) == re.findall(r"[a-zé中]+", text.replace("\ud800", "\ufffd"))


@settings(max_examples=200, deadline=None)
@given(TEXT, TEXT)
def test_a_block_ends_where_it_ends(text, other):
    written = block("P1", text)
    begin, end = written.split("\n")[0], written.rstrip("\n").split("\n")[-1]
    assert re.fullmatch(r"\[\[begin P1 [0-9a-f]{12}\]\]", begin) and end == begin.replace("begin", "end")
    assert written.count("[[end") == written.count("[[begin") == 1
    assert written == block("P1", text), "the same text has the same block, or nothing could be cached"
    assert (block("P1", other) == written) == (quoted(other) == quoted(text))


def test_a_text_that_knows_its_own_hash_gets_another():
    """Nobody can write such a text; the hash is replaced to see what would happen."""
    from carr_jax.rewards import quoting

    real, marks = quoting._hash, iter(["aaaa", "bbbb", "cccc"])
    quoting._hash = lambda text: next(marks)
    try:
        assert block("P1", "I say aaaa and bbbb") == "[[begin P1 cccc]]\nI say aaaa and bbbb\n[[end P1 cccc]]\n"
    finally:
        quoting._hash = real


def test_a_code_depends_on_every_part_and_its_border():
    assert len({code_of("a", "b"), code_of("ab", ""), code_of("", "ab"), code_of("a", "c")}) == 4


# -------------------------------------------------------------------------------------------- cut to size


@pytest.mark.parametrize(
    ("text", "limit", "kept"),
    [
        ("short", 5, "short"),
        ("x" * 60 + " y. z\n\n" + "w" * 200, 100, "x" * 60 + " y. z"),  # a paragraph
        ("x" * 60 + " y. z " + "w" * 200, 100, "x" * 60 + " y."),  # a sentence
        ("x" * 60 + " yz" + " w" + "w" * 200, 100, "x" * 60 + " yz"),  # a word
        ("x" * 300, 100, "x" * 75),  # nothing to cut at
        ("中" * 100, 100, "中" * 25),  # never inside a character
        ("中文。" * 100, 100, "中文。" * 8),
    ],
)
def test_where_text_is_cut(text, limit, kept):
    shown = capped(text, limit)
    assert shown.split("\n[...")[0] == kept
    if kept != text:
        assert shown.endswith(f"\n[... {size(text) - size(kept)} bytes left out]")


@settings(max_examples=200, deadline=None)
@given(TEXT, st.integers(60, 200))
def test_a_cut_text_has_its_size_and_is_a_prefix(text, limit):
    shown = capped(quoted(text), limit)
    assert size(shown) <= limit
    assert quoted(text).startswith(shown.split("\n[... ")[0])
    assert quoted(shown) == shown, "cutting makes no control token"


@pytest.mark.parametrize(
    ("sizes", "total", "given"),
    [
        ([], 10, []),
        ([3, 4], 10, [3, 4]),
        ([100, 100], 10, [5, 5]),
        ([100, 2, 100], 10, [4, 2, 4]),
        ([7, 9, 1], 10, [4, 5, 1]),
    ],
)
def test_shares(sizes, total, given):
    assert shares(sizes, total) == given
