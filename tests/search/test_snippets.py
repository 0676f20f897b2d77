"""The stretch of a page that a result shows, against a plain search through all stretches."""

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carr_jax.records import Page
from carr_jax.search.corpus import Corpus
from carr_jax.search.snippets import best_stretch, stretches, weighty_words
from carr_jax.search.world import WorldConfig, build_world

WORDS = "a bb the River Bridge stone. mason! x? é-ë don't 12,5 river's longlonglonglonglong".split()
ODD_WORDS = (
    "dying lying tying skis skies idly gently ugly early only singly news howe atlas innings Yes by say youth "
    "eing ies Ölüdeniz ÉCOLE x_dying (dying) un-dying 's don't DYING i y I'll ties dies generously"
).split()
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
        assert best_stretch(text, size, weights, terms) == plainly(text, size, weights)


def test_words_that_begin_otherwise_hold_no_term_of_the_query():
    """All words of the built-in world and the odd ones of English, with the stemmer of the index."""
    stems = Corpus([Page("u", "t", "x")]).ranker.terms
    text = " ".join(
        page.text
        for page in build_world(WorldConfig(entities_per_kind=30, distractors=10, look_alikes=5)).pages
    )
    words = [*dict.fromkeys(text.split()), *ODD_WORDS]
    rng = random.Random(0)
    rng.shuffle(words)
    line = " ".join(words)
    for k in range(0, len(words), 5):
        weights = dict.fromkeys(stems(" ".join(words[k : k + 5])), 1.0)
        held = [line[a:b] for a, b, _ in weighty_words(line, weights, stems)]
        assert held == [word for word in words if weights.keys() & set(stems(word))]


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
    assert best_stretch(text, 24, {"red": 1.0, "green": 1.0}, terms) == "Red green."
    assert best_stretch(text, 24, {}, terms) == "One is red."
    assert best_stretch("", 24, {"red": 1.0}, terms) == ""


def test_words_that_are_part_of_others_are_not_mixed_up():
    assert weighty_words("ab b. (b) abb", {"b": 1.0}, terms) == [(3, 5, {"b"}), (6, 9, {"b"})]
