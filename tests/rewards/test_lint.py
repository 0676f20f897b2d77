"""Rubrics that cannot score or that tell too much: one question for each finding, and files that are clean."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carr_jax.data.sources import read_questions
from carr_jax.records import Question, Rubric
from carr_jax.rewards.lint import LONGEST, MOST_RUBRICS, connected_to_answer, lint, structure
from carr_jax.search.world import SPLITS, WorldConfig, build_world

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def asked(*texts, question="Where was the author of Emma born?", answer="Kalkar", **fields):
    return Question("q", question, answer, rubrics=tuple(map(Rubric, texts)), **fields)


CLEAN = ("<E1> wrote Emma.", "<E1> was born in <E0>.")


def test_clean_rubrics_have_no_findings():
    named = {"E0": ("Kalkar",), "E1": ("Ada",)}
    assert lint(asked(*CLEAN)) == lint(asked(*CLEAN, entities=named)) == []


@pytest.mark.parametrize(
    ("texts", "finding"),
    [
        ((), "there are no rubrics; write one statement for each fact of the question"),
        (
            (*CLEAN, "Emma is a novel."),
            'rubric 3 ("Emma is a novel.") has no placeholder; name its hidden entities <E0>, <E1>, ..., or '
            "leave it out",
        ),
        (("<E1> wrote Emma.",), "no rubric mentions <E0>, the answer; say what is known of it"),
        (
            ("<E2> was born in <E0>.",),
            "placeholders have gaps: E0, E2; number them from <E0> on, without leading zeros",
        ),
        (
            ("<E01> was born in <E0>.",),
            'rubric 1 ("<E01> was born in <E0>.") writes <E01> for a placeholder; write it as <E0>, <E1>, ...',
        ),
        (
            ("[E1] was born in <E0>.",),
            'rubric 1 ("[E1] was born in <E0>.") writes [E1] for a placeholder; write it as <E0>, <E1>, ...',
        ),
        (
            ("<E0> lies on the Rhine.", "<E1> wrote Emma."),
            'rubric 2 ("<E1> wrote Emma.") is not connected to <E0>; add the fact that ties its entities to '
            "the others",
        ),
        (
            (*CLEAN, "<E1> WAS born, in <E0>"),
            'rubric 3 ("<E1> WAS born, in <E0>") repeats rubric 2; leave it out',
        ),
        (
            (*CLEAN, "<E0> is the town of kálkar."),
            "rubric 3 (\"<E0> is the town of kálkar.\") names 'Kalkar'; write its placeholder instead",
        ),
        (
            ("<E1> wrote Emma. She was born in <E0>.",),
            'rubric 1 ("<E1> wrote Emma. She was born in <E0>.") is more than one sentence; make each fact a '
            "rubric of its own",
        ),
        (
            (*CLEAN, "<E0> is <|im_end|>."),
            'rubric 3 ("<E0> is <|im_end|>.") holds control tokens or characters that are not seen; leave them '
            "out",
        ),
        ((*CLEAN, "<E0>."), 'rubric 3 ("<E0>.") states nothing; write one whole sentence'),
    ],
)
def test_each_finding_says_which_rubric_and_what_to_do(texts, finding):
    assert finding in lint(asked(*texts))


def test_what_is_too_long_or_too_much():
    long = "<E0> is " + "very " * 70 + "old."
    (finding,) = lint(asked(*CLEAN, long))
    assert f"has {len(long)} characters, {LONGEST} at most" in finding
    assert len(finding) < 220
    many = [f"<E0> has {n} gates." for n in range(MOST_RUBRICS + 1)]
    assert lint(asked(*many)) == ["41 rubrics; keep the 40 that the answer needs most"]
    assert lint(asked(*many[:-1])) == []


@pytest.mark.parametrize(
    "text",
    [
        "<E1>, Dr. J. R. Smith of St. Louis, met <E0>.",
        '"Who wrote Emma?" is answered by <E1>, born in <E0>.',
        "<E1> vs. Jones Inc. was decided in <E0>.",
        "<E1> played for 1. FC Koblenz under Prof. Adler in <E0>.",
        "<E1> came to <E0> at 9.30 a.m. on Monday.",
    ],
)
def test_initials_titles_and_quoted_questions_end_no_sentence(text):
    assert lint(asked(text)) == []


@pytest.mark.parametrize("text", ["<E1> is in <E0>.\n<E1> is red", "<E1> is in <E0>. It is", "<E0>很大。<E1>"])
def test_two_sentences(text):
    assert any("more than one sentence" in finding for finding in lint(asked(text)))


def test_what_leaks():
    named = {"E0": ("Kalkar",), "E1": ("Ada", "Countess of Kent")}
    leak = ("<E1> wrote Emma.", "<E1>, the countess of Kent, was born in <E0>.")
    assert "names 'Countess of Kent'" in lint(asked(*leak, entities=named))[0]
    assert "names 'Countess of Kent'" in lint(asked(*leak), hidden=("Countess of Kent",))[0]
    assert lint(asked(*leak, entities=named, question="Where was the Countess of Kent born?")) == []
    assert lint(asked("<E1> wrote Emma, not Kalkarian Tales, in <E0>.", entities=named)) == []
    assert lint(asked("<E0> has no gate.", answer="no", answer_type="yesno")) == []


def test_structure_is_what_a_file_must_have():
    def faults(*texts, **entities):
        return structure(Question("q", "?", "a", rubrics=tuple(map(Rubric, texts)), entities=entities))

    assert structure(Question("q", "?", "a")) == faults("<E1> wrote <E0>.") == []
    assert faults("<E1> wrote <E0>.", E0=("a",), E1=("b",)) == []
    assert faults("<E0> is <E1>.", E0=("a",)) == ["<E1> has no name"]
    assert faults("<E0> is red.", E0=("a",), E1=("b",)) == ["<E1> stands in no rubric"]


def test_connected_to_answer():
    rubrics = [Rubric(t) for t in ("<E3> a <E4>", "<E1> b <E0>", "<E1> c <E2>", "d", "<E2> e")]
    assert connected_to_answer(rubrics) == [False, True, True, False, True]


@given(st.lists(st.text(alphabet="<E01>[]ab .!?\n", max_size=40), max_size=6), st.text(max_size=10))
def test_any_text_can_be_linted(texts, answer):
    findings = lint(asked(*texts, answer=answer or "x"))
    assert all("\n" not in finding for finding in findings)
    assert findings or all("<E" in text for text in texts)


# ---------------------------------------------------------------------------------------------- what there is


def test_the_world_is_clean():
    config = WorldConfig(entities_per_kind=40, obfuscate=0.5, shortcut=0.3, hops=(1, 2, 3, 4))
    world = build_world(config)
    questions = [q for split in SPLITS for q in world.questions(split, 16)]
    assert len(questions) == 48 and not any(map(lint, questions))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not there")
def test_two_shared_questions_in_a_thousand_are_not():
    """In both, the name of one thing is a part of the name of another that the rubric has to hold."""
    questions = [q for q in read_questions(SHARED) if q.rubrics]
    findings = [finding for question in questions for finding in lint(question)]
    assert len(questions) == 1187 and len(findings) == 2
    assert "names 'Isa bin Salman Al Khalifa'" in findings[1] and "names 'Great Britain'" in findings[0]
