"""Teachers answer questions with our tools; what they did well becomes traces to learn from.

An attempt is played, judged, and on disk before it counts; the same command goes on after a kill, a spent
budget or a failure.  Nothing that failed for a reason of ours is a reject: it is asked again.  When the score
of every attempt is known, the best of each question are kept and frozen (`traces.py`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carr_jax.data.card import Card
from carr_jax.journal import append, appending, as_they_come
from carr_jax.judging import how_to_go_on
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.errors import CannotGoOn
from carr_jax.records import End, Question, Score, Trajectory, Turn
from carr_jax.rewards.carr import READERS, judge_rubrics, judgeable, score_outcome, with_rubrics
from carr_jax.rewards.judge import Judge
from carr_jax.rewards.rejection import Bar
from carr_jax.rollout.recorded import RecordedEngine, RecordedTools
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.rollout.scripted import ScriptedEngine, expert
from carr_jax.rollout.teacher import ChatTeacher
from carr_jax.traces import Attempt, Chosen, choose, freeze, journal_of, read_attempts, reasons


@dataclass(frozen=True)
class Played:
    """An episode of a teacher.  `refused`: why his words are no trace, `failed`: why he could not be heard."""

    trajectory: Trajectory
    refused: str = ""
    failed: str = ""


class TeacherStopped(CannotGoOn):
    """The teacher cannot be asked any more; the text says why, and how to go on."""


Teacher = Callable[[Question, int], Awaitable[Played]]  # of a question and the number of the attempt
Grader = Callable[[Question, Trajectory], Awaitable[Score]]


# ------------------------------------------------------------------------------------------------ the teachers


def by_expert(rollouts: Rollouts, wander: float = 0.0) -> Teacher:
    """The scripted expert, who knows the way and asks nobody; each of its attempts is the same."""

    async def play(question: Question, number: int) -> Played:
        engine = ScriptedEngine(rollouts.chat, expert(question, wander))
        return Played(await dataclasses.replace(rollouts, engine=engine).episode(question, number, 0))

    return play


def by_engine(rollouts: Rollouts, seed: int) -> Teacher:
    """A policy of ours, sampled as reinforcement learning samples it."""

    async def play(question: Question, number: int) -> Played:
        return Played(await rollouts.episode(question, number, seed))

    return play


def by_chat(rollouts: Rollouts, seed: int, client: ChatClient, cache: ReplyCache) -> Teacher:
    """A model behind a chat endpoint.  Raises TeacherStopped when no later attempt can succeed either."""

    async def play(question: Question, number: int) -> Played:
        engine = ChatTeacher(client, cache, rollouts.chat, question.question)
        trajectory = await dataclasses.replace(rollouts, engine=engine).episode(question, number, seed)
        if engine.trouble is not None:
            raise TeacherStopped(how_to_go_on(engine.trouble, "--budget-usd", "--teacher"))
        return Played(trajectory, engine.refused, engine.failed)

    return play


def by_history(rollouts: Rollouts, turns_of: Mapping[str, Sequence[Turn]]) -> Teacher:
    """Conversations that were had elsewhere, by the id of their question: played again turn by turn."""

    async def play(question: Question, number: int) -> Played:
        turns = turns_of[question.id]
        engine = RecordedEngine(rollouts.chat, turns)
        again = dataclasses.replace(rollouts, engine=engine, tools=RecordedTools(turns))
        trajectory = await again.episode(question, number, 0)
        return Played(trajectory, engine.refused or _not_the_same(turns, trajectory))

    return play


def _not_the_same(turns: Sequence[Turn], trajectory: Trajectory) -> str:
    """Why what was played again is not what was recorded, "" when it is, as far as the budgets let it be."""
    if trajectory.end is End.TOOL_ERROR:
        return "a call has no output"
    if trajectory.end is End.ANSWERED and len(trajectory.turns) < len(turns):
        return "the conversation goes on after its answer"
    played = [call.result.output for call in trajectory.calls if call.result]
    recorded = [call.result.output for turn in turns for call in turn.calls if call.result]
    return "" if played == recorded[: len(played)] else "a call that our tools do not take as it was made"


# ------------------------------------------------------------------------------------------------- the grader


def by_rewards(judge: Judge, bar: Bar, mix: str = "carr_paper", citations: str = "tolerant") -> Grader:
    """The rewards of reinforcement learning; rubrics are judged only where a trace could still be kept.

    A question without a gold answer has no outcome, so its rubrics alone decide (`Bar.outcome` 0).
    """

    async def grade(question: Question, trajectory: Trajectory) -> Score:
        reading = READERS[citations](trajectory)
        score = await score_outcome(question, trajectory, reading, judge)
        if not judgeable(trajectory, score) or score.outcome < bar.outcome:
            return score
        return with_rubrics(score, await judge_rubrics(question, reading, judge, mix, everything=True))

    return grade


# ------------------------------------------------------------------------------------------------- collecting


async def collect(
    questions: Sequence[Question],
    folder: Path,
    play: Teacher,
    grade: Grader,
    *,
    attempts: int,
    in_flight: int,
    progress: Callable[[Attempt], Any] = lambda attempt: None,
) -> dict[tuple[str, int], Attempt]:
    """All attempts: those that the folder's journal knows, and the others, which are played and graded now.

    What was played but not graded is only graded.  Raises what teacher or judge raise when they cannot go on
    (CannotGoOn); what was done is in the journal.
    """
    known = read_attempts(folder)
    wanted = [(question, number) for question in questions for number in range(attempts)]
    new = [(q, n) for q, n in wanted if not _is_known(known.get((q.id, n)))]
    with appending(journal_of(folder)) as journal:

        async def one(task: tuple[Question, int]) -> Attempt:
            question, number = task
            old = known.get((question.id, number))
            again = old is not None and not old.trajectory.end.infrastructure
            played = Played(old.trajectory, old.refused) if again else await play(question, number)
            try:
                score = await _score(question, played, grade)
            except CannotGoOn:
                unknown = Score("unknown", reason="not judged yet")
                append(journal, Attempt(played.trajectory, unknown))
                raise
            attempt = Attempt(played.trajectory, score, played.refused)
            append(journal, attempt)
            return attempt

        async for _, attempt in as_they_come(new, one, in_flight):
            known[attempt.key] = attempt
            progress(attempt)
    return {(q.id, n): known[q.id, n] for q, n in wanted}


async def _score(question: Question, played: Played, grade: Grader) -> Score:
    """What was refused needs no judge, and of what was never said nothing is known."""
    if played.refused:
        return Score("ok", reason=played.refused)
    if played.failed:
        return Score("unknown", reason=played.failed)
    return await grade(question, played.trajectory)


def _is_known(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.score.known


def finish(
    folder: Path,
    questions: Sequence[Question],
    attempts: Mapping[tuple[str, int], Attempt],
    bar: Bar,
    keep: int,
    card: Card,
    how: Mapping[str, Any],
) -> dict[str, float]:
    """Keeps the best, freezes the folder, and returns its statistics.  All scores must be known."""
    chosen = choose(questions, attempts, bar, keep)
    facts = statistics(questions, attempts, chosen, bar)
    freeze(folder, chosen, dataclasses.replace(card, facts={**card.facts, **facts}), how)
    return facts


# ------------------------------------------------------------------------------------------------- in numbers


def statistics(
    questions: Sequence[Question], attempts: Mapping[tuple[str, int], Attempt], chosen: Chosen, bar: Bar
) -> dict[str, float]:
    """Counts of attempts, means over those that ended in an answer, and how often which reason to reject.

    A mean over nothing is left out, and so is the outcome of questions whose answers nobody knows.
    """
    tried = list(attempts.values())
    with_gold = {question.id for question in questions if question.answer}
    answered = [a for a in tried if a.trajectory.end is End.ANSWERED and not a.refused]
    solved = {a.trajectory.question_id for a in tried if not reasons(a, bar)}
    kept = [attempt.trajectory for _, attempt in chosen.kept]
    why = Counter(reason.partition(":")[0] for reject in chosen.rejects for reason in reject.reasons)
    means = {
        "mean outcome": [a.score.outcome for a in answered if a.trajectory.question_id in with_gold],
        "mean rubric reward": [a.score.rubric for a in answered if a.score.rubric is not None],
        "tool calls of a trace": [len(t.calls) for t in kept],
    }
    return {
        "questions": len(questions),
        "questions with a trace": len(solved),
        "attempts": len(tried),
        "answered": len(answered),
        "kept traces": len(kept),
        "tokens": sum(len(t.ids) for t in kept),
        "trained tokens": sum(t.generated_tokens for t in kept),
        "longest trace": max((len(t.ids) for t in kept), default=0),
        **{name: sum(values) / len(values) for name, values in means.items() if values},
        **{f"rejected: {reason}": count for reason, count in sorted(why.items())},
    }
