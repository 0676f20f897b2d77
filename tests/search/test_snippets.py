"""The stretch of a page that a result shows, against a plain search through all stretches."""

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carr_jax.search.snippets import outlined, stretches

WORDS = "a bb the River Bridge stone. mason! x? é-ë don't 12,5 river's longlonglonglonglong".split()
WORDS.append("漢字" * 5)


def terms(text):
    return re.findall(r"\w+", text.lower())


def best_stretch(text, size, weights):
    found = outlined(text, size, terms)
    return found.best_stretch({hash(term): weight for term, weight in weights.items()})


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
        assert best_stretch(text, size, weights) == plainly(text, size, weights)


@example("aa aaaaaaaaaaaaaa", 16)  # the next word begins beyond a quarter
@given(st.text("ab. !", max_size=60), st.integers(1, 30))
@settings(max_examples=1000, deadline=None)
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
    assert best_stretch(text, 24, {"red": 1.0, "green": 1.0}) == "Red green."
    assert best_stretch(text, 24, {}) == "One is red."
    assert best_stretch("", 24, {"red": 1.0}) == ""
