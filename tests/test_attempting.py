"""How hard questions are: shares with unknown attempts, the one search, the expert."""

import asyncio
import dataclasses
import itertools
from fractions import Fraction
from pathlib import Path

import pytest

from carr_jax.agent.chat import Chat
from carr_jax.agent.episode import Budgets
from carr_jax.agent.tokenizer import Tokenizer
from carr_jax.attempting import Difficulty, by_teacher, one_search, sifted
from carr_jax.collecting import Played, by_engine, by_expert, by_rewards
from carr_jax.records import Page, Question, Rubric, Score, Seen, ToolResult
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rewards.rejection import Bar
from carr_jax.rewards.rubric_maker import Made
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.rollout.scripted import ScriptedEngine, guesser
from carr_jax.search.corpus import Corpus
from carr_jax.search.world import WorldConfig, build_world

TOKENIZER = Path(__file__).parents[1] / "carr_jax/assets/sft_tiny"
QUESTION = Question("q", "Where was the author of Emma born?", "Kalkar", ("Calcar",))


@pytest.mark.parametrize(("least", "most"), [(0.0, 0.0), (0.25, 0.75), (1.0, 1.0), (0.0, 0.5)])
def test_unknown_attempts_decide_nothing(least, most):
    """Kept or refused only if every way that the unknown attempts may have ended says so."""
    difficulty = Difficulty(4, least, most)
    for outcomes in itertools.product((True, False, None), repeat=4):
        ends = itertools.product(*((True, False) if outcome is None else (outcome,) for outcome in outcomes))
        says = {least <= Fraction(sum(end), 4) <= most for end in ends}
        assert difficulty.keeps(outcomes) == (says.pop() if len(says) == 1 else None)


def test_what_becomes_of_a_question():
    def go(*outcomes):
        async def attempt(question, k):
            return outcomes[k]

        return asyncio.run(sifted(Made(QUESTION, calls=3), attempt, Difficulty(len(outcomes), 0.0, 0.5)))

    kept = go(True, False)
    assert kept.question.metadata["solved"] == 0.5 and kept.question.question == QUESTION.question
    easy = go(True, True)
    assert easy.question is None and "too easy" in easy.findings[0] and easy.calls == 3
    unknown = go(True, None)
    assert (unknown.question, unknown.findings) == (None, ()) and "1 attempts" in unknown.reason


def search(*texts, question=QUESTION, tools=None):
    pages = [Page(f"u/{i}", f"Page {i}", text) for i, text in enumerate(texts)]
    return asyncio.run(one_search(tools or Corpus(pages))(question, 0))


def test_one_search_solves_what_stands_on_a_page_it_finds():
    filler = "Nothing of the kind. " * 40
    assert search(f"The author of Emma. {filler} Born in Calcar.", "Something else.") is True
    assert search("The author of Emma was born.", "Calcar has a castle.") is False  # another page, not found
    assert search("The author of Emma was born in Calcaria.") is False


def test_one_search_that_failed_is_unknown():
    class Down:
        def __init__(self, *fails):
            self.fails = fails

        def session(self, question):
            return self

        async def search(self, query, num):
            return self.answer("search")

        async def open(self, id):
            return self.answer("open")

        def answer(self, name):
            error = "unavailable" if name in self.fails else None
            return ToolResult("", () if error else (Seen("u", "A page", "page", "text"),), error)

    assert search(tools=Down("search")) is None and search(tools=Down("open")) is None
    assert search(tools=Down()) is False


@pytest.fixture(scope="module")
def rollouts():
    world = build_world(WorldConfig(entities_per_kind=12, distractors=10, look_alikes=0))
    budgets = Budgets(context=30_000, turns=30, tool_calls=30, turn_tokens=4_000)
    return world, Rollouts(None, Chat(Tokenizer.load(TOKENIZER)), Corpus(world.pages), budgets)


GRADE = by_rewards(ExactJudge(), Bar())


def test_the_expert_solves_what_is_sound_and_nothing_else(rollouts):
    world, how = rollouts
    question = world.questions("sft", 1)[0]
    attempt = by_teacher(by_expert(how), GRADE, Bar())
    assert asyncio.run(attempt(question, 0)) is True
    wrong = dataclasses.replace(
        question, rubrics=(*question.rubrics, Rubric("<E0> sank the Titanic.", question.gold_urls[:1]))
    )
    assert asyncio.run(attempt(wrong, 0)) is False

    async def silent(question, trajectory):
        return Score("unknown")

    assert asyncio.run(by_teacher(by_expert(how), silent, Bar())(question, 0)) is None


def test_an_agent_need_only_be_right(rollouts):
    world, how = rollouts
    question = world.questions("sft", 1)[0]

    def guess(question, engine_of):
        guessing = dataclasses.replace(how, engine=ScriptedEngine(how.chat, guesser(engine_of)))
        return asyncio.run(by_teacher(by_engine(guessing, 0), GRADE, Bar(1.0, 0.0))(question, 0))

    assert guess(question, question) is True
    assert (
        guess(dataclasses.replace(question, answer="Nobody", entities={"E0": ("Nobody",)}), question) is False
    )


@pytest.mark.parametrize(("fate", "says"), [({"refused": "no turn"}, False), ({"failed": "no reply"}, None)])
def test_who_could_not_be_heard_is_unknown(fate, says):
    async def play(question, number):
        return Played(None, **fate)

    assert asyncio.run(by_teacher(play, GRADE, Bar())(QUESTION, 0)) is says
