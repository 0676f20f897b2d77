"""Scripted agents on real questions and pages: what honest work earns, and what shortcuts do not.

The questions are those of the shared data folder with rubrics from evidence; the tests skip where it is absent.
"""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from carr_jax.agent.chat import Chat
from carr_jax.agent.episode import Budgets
from carr_jax.agent.tokenizer import train_bpe
from carr_jax.data.sources import read_pages, read_questions
from carr_jax.rewards.carr import score_trajectory
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.rollout.scripted import ScriptedEngine, citer, expert, guesser
from carr_jax.search.browser import Limits
from carr_jax.search.corpus import Corpus

DATA = Path(__file__).parents[2].parent / "shared" / "data"
EVERY = 9  # a ninth of the questions, evenly spread: about 130

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data folder is not there")


@pytest.fixture(scope="module")
def setting():
    pages = tuple(read_pages(DATA))
    questions = [q for q in read_questions(DATA) if q.rubrics][::EVERY]
    chat = Chat(train_bpe([page.text for page in pages[::40]], 2048))
    return questions, chat, Corpus(pages, limits=Limits(max_results=5)), {page.url: page.text for page in pages}


def run(setting, policy):
    """(questions, scores) of one scripted policy."""
    questions, chat, corpus, _ = setting
    budgets = Budgets(context=60_000, turns=30, tool_calls=30, turn_tokens=4_000)

    async def score(question):
        rollouts = Rollouts(ScriptedEngine(chat, policy(question)), chat, corpus, budgets)
        trajectory = await rollouts.episode(question, 0, 0)
        return await score_trajectory(question, trajectory, ExactJudge())

    async def all_scores():
        return [await score(question) for question in questions]

    scores = asyncio.run(all_scores())
    assert all(score.known for score in scores)
    return scores


def evidence_allows(question, text_of):
    """Whether the gold page of every factual rubric holds all names of that rubric, read plainly.

    Two in a hundred rubrics have a hole in their evidence: a date run together with a number, or a page that
    names its own subject in another spelling.
    """
    return all(
        any(
            all(any(n.casefold() in text_of[u].casefold() for n in question.entities[e]) for e in r.entities)
            for u in r.support_urls
        )
        for r in question.rubrics
        if r.relation == "fact"
    )


def test_the_expert_is_right_cites_and_connects(setting):
    scores = run(setting, expert)
    assert np.mean([score.outcome for score in scores]) >= 0.95
    allowed = [evidence_allows(question, setting[3]) for question in setting[0]]
    assert np.mean(allowed) > 0.7, "most of the data must be usable"
    assert np.mean([s.rubric for s, ok in zip(scores, allowed, strict=True) if ok]) >= 0.9


def test_a_right_guess_without_citations_earns_no_rubric_reward(setting):
    scores = run(setting, guesser)
    assert np.mean([score.outcome for score in scores]) >= 0.95
    assert {score.rubric for score in scores} == {0.0}


def test_citing_the_pages_without_naming_the_entities_earns_no_rubric_reward(setting):
    """Names inside cited addresses state nothing, so every rubric with an entity beside the answer fails."""
    questions, *_ = setting
    scores = run(setting, citer)
    hidden = [needs_unsaid_names(question) for question in questions]
    assert np.mean(hidden) > 0.8
    assert {score.rubric for score, needs in zip(scores, hidden, strict=True) if needs} == {0.0}


def needs_unsaid_names(question):
    """Whether every rubric has an entity that the answer does not name too (as Jessie Woodrow Wilson does)."""
    answers = " ".join(question.answers).casefold()
    said = {e for e, names in question.entities.items() if any(n.casefold() in answers for n in names)}
    return all(set(r.entities) - said - {"E0"} for r in question.rubrics)
