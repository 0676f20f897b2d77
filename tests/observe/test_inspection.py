"""What notebooks show of a reward: reasons in words, marked pages, and lines over alpha."""

import asyncio
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carr_jax.calibrating import scripted_group
from carr_jax.observe.inspection import (
    evidence_html,
    group_html,
    highlighted,
    plot_alpha,
    rubrics_html,
    same_lines,
    stated_names,
    why,
)
from carr_jax.records import Question, RubricScore, Score, Verdict
from carr_jax.rewards.group import score_group
from carr_jax.rewards.judge import ExactJudge

NAMES = {"E0": "Kalkar", "E1": None, "E2": None}


def rubric(identified=False, supported=False, connected=False):
    return RubricScore("<E1> met <E2> in <E0>.", None, identified, supported, connected)


def test_why_a_rubric_earned_nothing():
    assert why(rubric(), NAMES) == "the answer does not name E1 and E2"
    assert why(rubric(), {}) == "it was not judged"
    assert why(rubric(True), NAMES) == "no page that the agent both saw and cited states it"
    assert why(rubric(True, True), NAMES).startswith("supported, but no chain")
    assert why(rubric(True, True, True), NAMES).startswith("counts")


def test_names_are_those_of_the_identify_verdict():
    score = Score("ok", verdicts=(Verdict("outcome", "ok", True), Verdict("identify", "ok", NAMES)))
    assert stated_names(score) == NAMES
    assert stated_names(Score("ok", verdicts=(Verdict("identify", "unknown", None),))) == {}


def test_names_are_marked_as_whole_words_the_longest_first():
    marked = highlighted("Ada Byron met ADA and Adam & <b>.", ["Ada", "Ada Byron"])
    assert marked.count("<mark") == 2 and ">Ada Byron</mark>" in marked and ">ADA</mark>" in marked
    assert marked.endswith("Adam &amp; &lt;b&gt;.")
    assert highlighted("a.b axb", ["a.b"]).count("<mark") == 1
    assert highlighted("x", [" ", ""]) == "x"


class Text(HTMLParser):
    """The text of a page, and its tags."""

    def __init__(self, page):
        super().__init__()
        self.text, self.tags = "", set()
        self.feed(page)
        self.close()

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)


@given(
    st.text(alphabet="aB <>&\"'/b.-=", max_size=60), st.lists(st.text(alphabet="aB<&b", max_size=4), max_size=3)
)
def test_marking_changes_no_text_and_makes_no_tag(text, names):
    assert Text(highlighted(text, names)).text == text
    assert Text(highlighted(text, names)).tags <= {"mark"}


def test_untrusted_text_makes_no_tag():
    evil = '<script>x</script><img src="y">'
    score = Score(
        "ok",
        rubric_scores=(RubricScore("<E0> is red.", f"{evil} is red.", True, False, False),),
        verdicts=(Verdict("identify", "ok", {"E0": evil}),),
        reason=evil,
    )
    pages = [
        rubrics_html(Question("q", evil, "a"), score),
        rubrics_html(Question("q", evil, "a"), Score("unknown", reason=evil)),
        evidence_html(score, {f"https://a.com/{evil}": evil}),
        group_html([evil], [score], [0.5], [1.0]),
    ]
    for page in pages:
        assert not Text(page).tags & {"script", "img"} and evil in Text(page).text


def test_same_lines_are_one():
    values = np.array([[1.0, 0.0, 1.0], [0.5, 0.0, 0.5]])
    lines = same_lines(values, ["a", "b", "c"])
    assert {name: list(line) for name, line in lines.items()} == {"a / c": [1.0, 0.5], "b": [0.0, 0.0]}


def test_alpha_is_drawn():
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    alphas = [0.0, 0.5, 1.0]
    rewards = np.array([[1, 1, 0], [1, 0.75, 0], [1, 0.5, 0]])
    figure = plot_alpha(alphas, rewards, rewards - rewards.mean(1, keepdims=True), ["a", "b", "c"])
    first = figure.axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in first.lines[:3]}
    assert drawn == {"a": [1, 1, 1], "b": [1, 0.75, 0.5], "c": [0, 0, 0]}
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["Mixed reward", "Advantage"]
    plt.close("all")


def test_the_scripted_group_is_graded():
    """By hand, of five rubrics: all; one before the gap; two before the unread page; none; none; none."""
    question, attempts = scripted_group()
    scores = asyncio.run(
        score_group(question, list(attempts.values()), ExactJudge(), "carr_paper", score_everything=True)
    )
    earned = {name: (s.outcome, s.rubric) for name, s in zip(attempts, scores, strict=True)}
    assert earned == {
        "expert": (1, 1.0),
        "skips a name": (1, pytest.approx(0.2)),
        "skips a page": (1, pytest.approx(0.4)),
        "cites, names nobody": (1, 0.0),
        "guesser": (1, 0.0),
        "wrong, well cited": (0, 0.0),
    }
    shown = Text(rubrics_html(question, scores[1])).text
    assert shown.count("the answer does not name E2") == 2 and shown.count("no chain of supported") == 2
