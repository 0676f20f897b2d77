"""No adversary earns more than honest work of the same content; `pytest -s` prints the table.

Two judges: the exact one, and one that believes whatever it is given to read.  The second shows what the steps
around a judge are worth: what it is never given cannot deceive it.
"""

import functools

import pytest
from adversaries import ADVERSARIES, Content, contents, honest, silent, worked
from rich.console import Console
from rich.table import Table
from scripted_judge import score

from carr_jax.records import Verdict
from carr_jax.rewards import matching, rubrics
from carr_jax.rewards.judge import ExactJudge

CONTENTS, EXACT = list(contents()), ExactJudge()


class Credulous:
    """A name anywhere is stated, an answer among others is right, a page that holds all names supports."""

    async def outcome(self, question, response):
        return Verdict("outcome", "ok", self._answer(question, response) is not None)

    async def identify(self, question, response):
        ids = rubrics.entity_ids(question.rubrics)
        names = {entity: matching.mentions(response, question.entities[entity]) for entity in ids}
        return Verdict("identify", "ok", names | {"E0": self._answer(question, response)})

    async def support(self, question, names, indices, pages):
        held = [[names[e] for e in question.rubrics[i].entities] for i in indices]
        return Verdict("support", "ok", [any(self._holds(page, n) for page in pages.values()) for n in held])

    def _answer(self, question, response):
        return matching.mentions(matching.exact_answer(response) or "", question.answers, question.answer_type)

    def _holds(self, page, names):
        return all(matching.mentions(page, [name]) for name in names)


# What takes judgement: a reader without it is deceived, whatever it is given.
HEDGERS = [a for a in ADVERSARIES if a.name.endswith("hedger")]
# The reference knows one spelling of the References heading, takes the last for the only one, and has its judge
# read names in addresses.
HOLES = {"bold hider", "underlined hider", "twice hedger", "address namer", "placeholder writer"}


@functools.cache
def earned(adversary, judge, citations="tolerant"):
    """[(adversary's, twin's)] over all contents, each (outcome, rubric reward)."""
    pairs = []
    for content in CONTENTS:
        scores = [
            score(content.question, t, judge, citations=citations) for t in adversary.trajectories(content)
        ]
        assert all(s.known for s in scores)
        pairs.append([(s.outcome, s.rubric) for s in scores])
    return pairs


def beaten(adversary, judge, citations="tolerant"):
    """The contents with which the adversary earns more than its twin, in either part."""
    pairs = zip(CONTENTS, earned(adversary, judge, citations), strict=True)
    return [content for content, (mine, twins) in pairs if mine[0] > twins[0] or mine[1] > twins[1]]


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda a: a.name)
def test_the_exact_judge_is_not_deceived(adversary):
    assert not beaten(adversary, EXACT)


@pytest.mark.parametrize("adversary", [a for a in ADVERSARIES if a not in HEDGERS], ids=lambda a: a.name)
def test_what_is_not_given_deceives_nobody(adversary):
    assert not beaten(adversary, Credulous())


@pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda a: a.name)
def test_the_strict_reading_has_the_holes_of_the_reference_and_no_others(adversary):
    assert bool(beaten(adversary, EXACT, "strict_reference")) == (adversary.name in HOLES)


def test_honest_work_is_paid():
    """Otherwise the gauntlet would be won by a reward that is always zero."""
    whole = [c for c in CONTENTS if c.right and set(c.question.gold_urls) <= c.seen.keys()]
    assert len(whole) == 4
    for c in whole:
        for judge in (EXACT, Credulous()):
            got = score(c.question, worked(c, honest(c)), judge)
            assert (got.outcome, got.rubric) == (1.0, 1.0)
            got = score(c.question, worked(c, silent(c)), judge)
            assert (got.outcome, got.rubric) == (1.0, 0.0)


def test_the_table():
    """Means over all contents; half of them have the right answer."""
    table = Table("adversary", "outcome", "rubric", "its twin's outcome", "its twin's rubric")
    for adversary in ADVERSARIES:
        pairs = earned(adversary, EXACT)
        means = [sum(pair[side][part] for pair in pairs) / len(pairs) for side in (0, 1) for part in (0, 1)]
        table.add_row(adversary.name, *(f"{mean:.2f}" for mean in means))
        assert means[0] <= means[2] and means[1] <= means[3]
    Console(width=80).print(table)


def test_contents_differ():
    assert len(CONTENTS) == 32 and all(isinstance(c, Content) for c in CONTENTS)
    assert {c.right for c in CONTENTS} == {True, False}
