"""Which attempts are kept, and which of several."""

import dataclasses

import numpy as np
import pytest

from carr_jax.records import End, Score, Trajectory, Turn
from carr_jax.rewards.rejection import Bar, best_first, defects

TURNS = (Turn(0, 1, "t", "c"),)


def attempt(end=End.ANSWERED, tokens=3, sample=0, turns=TURNS):
    none = np.zeros(tokens, np.float32)
    ids = np.zeros(tokens, np.int32)
    return Trajectory("q", sample, 1, ids, ids.astype(np.int8), none, ids, turns, end, "c")


@pytest.mark.parametrize(
    ("score", "bar", "says"),
    [
        (Score("ok", 1.0, 1.0), Bar(), ()),
        (Score("ok", 0.0, 1.0), Bar(), ("outcome too low",)),
        (Score("ok", 1.0, 0.5), Bar(), ("rubric reward too low",)),
        (Score("ok", 1.0, None), Bar(), ("rubric reward too low",)),
        (Score("ok", 1.0, 0.5), Bar(1.0, 0.5), ()),
        (Score("ok", 0.0, 1.0), Bar(0.0, 1.0), ()),
        (Score("ok", 0.0, None), Bar(0.0, 0.0), ()),
    ],
)
def test_the_bar(score, bar, says):
    assert defects(attempt(), score, bar) == says


@pytest.mark.parametrize("end", [e for e in End if e is not End.ANSWERED])
def test_only_answers_are_kept_whatever_they_earn(end):
    assert defects(attempt(end), Score("ok", 1.0, 1.0), Bar(0.0, 0.0)) == (end.value.replace("_", " "),)


def test_an_ill_formed_turn_on_the_way_is_a_defect():
    turn = Turn(0, 1, "t", "c", ill_formed="a tool call is not valid JSON")
    assert defects(attempt(turns=(turn,)), Score("ok", 1.0, 1.0), Bar()) == ("ill-formed turn",)


def test_an_unknown_score_is_neither_reject_nor_trace():
    with pytest.raises(ValueError, match="the judge was silent"):
        defects(attempt(), Score("unknown", reason="the judge was silent"), Bar())


def test_the_best_come_first_and_ties_are_broken_by_length_then_number():
    right, half, wrong = Score("ok", 1.0, 1.0), Score("ok", 1.0, 0.5), Score("ok", 0.0, 1.0)
    tried = [(attempt(tokens=9), wrong), (attempt(tokens=5), half), (attempt(tokens=5), right)]
    tried += [(attempt(tokens=4), right), (attempt(tokens=5), right)]
    tried = [(dataclasses.replace(t, sample=i), s) for i, (t, s) in enumerate(tried)]
    assert best_first(tried) == [3, 2, 4, 1, 0]
