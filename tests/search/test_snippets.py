"""The stretch of a page that a result shows, against a plain search through all stretches."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.search.snippets import best_stretch, outline, stretches

WORDS = "a bb the River Bridge stone. mason! x? é-ë don't 12,5 river's longlonglonglonglong".split()
WORDS.append("漢字" * 5)


def terms(text):
    return re.findall(r"\w+", text.lower())


def plainly(text, size, weights):
    """Every stretch is cut out and its terms are counted."""
    cut = [text[a:b] for a, b in stretches(text, size)]
    return max(cut, key=lambda s: sum(weights.get(t, 0) for t in set(terms(s))), default="")


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_first_of_the_heaviest_stretches(seed):
    rng = random.Random(seed)
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(80)))
    weights = {t: rng.choice([0.25, 1.0, 4.0]) for t in terms(" ".join(rng.sample(WORDS, 3)))}
    for size in (1, 5, 17, 40, 100):
        assert best_stretch(outline(text, size, terms), weights) == plainly(text, size, weights)


@given(st.text("ab. !", max_size=60), st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_stretches_cover_the_text_and_are_bounded(text, size):
    text = " ".join(text.split())
    spans = list(stretches(text, size))
    assert all(0 < b - a <= size for a, b in spans)
    assert all(not text[a:b].startswith(" ") and not text[a:b].endswith(" ") for a, b in spans)
    starts = {m.start() for m in re.finditer(r"\S+", text)}
    assert all(a in starts for a, _ in spans), "a stretch starts with a word"
    if all(len(word) <= size for word in text.split()):
        covered = {i for a, b in spans for i in range(a, b)}
        assert covered >= {i for i, c in enumerate(text) if c != " "}


def test_by_hand():
    text = "One is red. Two is green and very long indeed. Red green."
    assert [text[a:b] for a, b in stretches(text, 24)] == [
        "One is red.",
        "Two is green and very",
        "green and very long",
        "and very long indeed.",
        "long indeed.",
        "Red green.",
    ]
    assert best_stretch(outline(text, 24, terms), {"red": 1.0, "green": 1.0}) == "Red green."
    assert best_stretch(outline(text, 24, terms), {}) == "One is red."
    assert best_stretch(outline("", 24, terms), {"red": 1.0}) == ""


def test_words_that_are_part_of_others_are_not_mixed_up():
    page = outline("ab b. (b) abb", 5, terms)
    these = page.terms == hash("b")
    assert list(zip(page.starts[these], page.ends[these], strict=True)) == [(3, 5), (6, 9)]


def test_the_shown_part_of_a_long_word_counts():
    text = "xxxxxxx;yes;yyyyyyyyyy"
    assert best_stretch(outline(text, 11, terms), {"yes": 1.0}) == text[:11]
