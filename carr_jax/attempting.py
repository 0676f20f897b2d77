"""How hard a question is: some attempts of an agent, and which share of them may succeed.

An attempt that failed for another reason than the question (a tool, an engine, a judge) is unknown, not a
failure.  A question is kept or refused only when unknown attempts could not change that.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from carr_jax.agent.tools import SearchSession, Tools
from carr_jax.collecting import Grader, Teacher
from carr_jax.records import Question, Seen
from carr_jax.rewards.matching import mentions
from carr_jax.rewards.rejection import Bar, defects
from carr_jax.rewards.rubric_maker import Made

# Whether the k-th attempt at a question succeeds; None when that cannot be known.
Attempt = Callable[[Question, int], Awaitable[bool | None]]
RESULTS = 10  # of the one search


@dataclass(frozen=True)
class Difficulty:
    """Keep a question when at least `least` and at most `most` of `attempts` attempts succeed (shares)."""

    attempts: int = 4
    least: float = 0.0
    most: float = 0.0

    def keeps(self, outcomes: Sequence[bool | None]) -> bool | None:
        """Whether the question is kept; None when the unknown outcomes decide."""
        solved = sum(outcome is True for outcome in outcomes) / len(outcomes)
        at_most = sum(outcome is not False for outcome in outcomes) / len(outcomes)
        if self.least <= solved and at_most <= self.most:
            return True
        return False if at_most < self.least or solved > self.most else None


async def attempted(question: Question, attempt: Attempt, count: int) -> list[bool | None]:
    """The outcomes of `count` attempts, made at the same time."""
    return list(await asyncio.gather(*(attempt(question, k) for k in range(count))))


def one_search(tools: Tools) -> Attempt:
    """Searches the text of the question once and reads the first ten pages it finds.

    It counts as solved when an accepted answer stands anywhere on one of them: more than any reader of these
    pages can get right, for he would also have to see that this name is the one.
    """

    async def attempt(question: Question, k: int) -> bool | None:
        session = tools.session(question.question)
        found = await session.search(question.question, RESULTS)
        if found.error == "unavailable":
            return None
        seen, whole = await _read(session, found.seen)
        if any(mentions(f"{s.title} . {s.text}", question.answers, question.answer_type) for s in seen):
            return True
        return False if whole else None

    return attempt


async def _read(session: SearchSession, results: Sequence[Seen]) -> tuple[list[Seen], bool]:
    """What search results and their pages show, and whether every page could be asked for."""
    seen, whole = list(results), True
    for url in dict.fromkeys(s.url for s in results):
        page = await session.open(url)
        seen += page.seen
        whole = whole and page.error != "unavailable"
    return seen, whole


def by_teacher(play: Teacher, grade: Grader, bar: Bar) -> Attempt:
    """An episode of whoever may teach: the scripted expert, a policy of ours, a model behind an endpoint.

    It counts as solved when it reaches the bar.  What the expert does not solve with all rubrics has a fault:
    an answer, a rubric or a page that is not what it says.
    """

    async def attempt(question: Question, k: int) -> bool | None:
        played = await play(question, k)
        if played.refused or played.failed:
            return False if played.refused else None
        score = await grade(question, played.trajectory)
        return not defects(played.trajectory, score, bar) if score.known else None

    return attempt


async def sifted(made: Made, attempt: Attempt, difficulty: Difficulty) -> Made:
    """A question as it was made, unless attempts find it too easy or too hard, or nothing is known of them.

    The share of attempts that are known to have succeeded goes into its metadata as `solved`.
    """
    outcomes = await attempted(made.question, attempt, difficulty.attempts)
    keeps = difficulty.keeps(outcomes)
    solved = sum(outcome is True for outcome in outcomes) / len(outcomes)
    if keeps is None:
        unknown = sum(outcome is None for outcome in outcomes)
        return dataclasses.replace(made, question=None, reason=f"{unknown} attempts ended in a failure of ours")
    if not keeps:
        easy = "easy" if solved > difficulty.most else "hard"
        return dataclasses.replace(made, question=None, findings=(f"too {easy} for the agent that tries it",))
    metadata = {**made.question.metadata, "solved": solved}
    return dataclasses.replace(made, question=dataclasses.replace(made.question, metadata=metadata))
