"""Makes a file of questions with rubrics: resumable line by line, in the order of its source, frozen at last.

OUT                 questions with clean rubrics, as `data.sources` reads them
OUT.rejects         those that stayed unclean, with their findings: {"id", "findings", "rubrics"}
OUT.manifest.json   once all is done: SHA-256 of OUT, counts, and how it was made
OUT.card.md         the same for people, with distributions, licences and credits
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carr_jax.data.card import Card
from carr_jax.data.frozen import check_frozen, freeze, manifest_of, rejects_of
from carr_jax.journal import append, appending, as_they_come, rows_of
from carr_jax.records import InputError, Question
from carr_jax.rewards.rubric_maker import Made
from carr_jax.rewards.rubrics import entity_ids
from carr_jax.stored import question_from_json

Make = Callable[[Question], Awaitable[Made]]


@dataclass(frozen=True)
class Rejected:
    """A question that stayed unclean: what is wrong with its last rubrics."""

    id: str
    findings: tuple[str, ...]
    rubrics: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What became of a source.

    `failed` maps the ids that no usable reply was had for to the reason; they are asked for again.  `kept`
    were there already; calls, tokens and US dollars are of this time only.
    """

    questions: tuple[Question, ...]
    rejected: tuple[Rejected, ...]
    failed: Mapping[str, str]
    kept: int = 0
    rounds: int = 0
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


# ------------------------------------------------------------------------------------------------------ making


async def make_file(
    questions: Sequence[Question],
    out: Path,
    make: Make,
    how: Mapping[str, Any],
    in_flight: int = 64,
    progress: Callable[[Made], Any] = lambda made: None,
) -> Report:
    """Make rubrics for what `out` and its rejects do not hold yet, some questions at a time.

    Each result is on disk as soon as it is there.  When no question failed, the file is put in the order of
    `questions` and frozen; `how` goes into the manifest.  Raises InputError when `out` was changed after it was
    frozen, and whatever `make` raises.
    """
    check_frozen(out)
    done, rejected = _kept(questions, out)
    new = [q for q in questions if q.id not in done and q.id not in rejected]
    failed: dict[str, str] = {}
    spent = [0, 0, 0, 0.0]
    if new:
        manifest_of(out).unlink(missing_ok=True)
        with appending(out) as clean, appending(rejects_of(out)) as unclean:
            async for question, made in as_they_come(new, make, in_flight):
                if made.question is not None:
                    done[question.id] = made.question
                    append(clean, made.question)
                elif made.findings:
                    rejected[question.id] = Rejected(question.id, made.findings, made.draft)
                    append(unclean, rejected[question.id])
                else:
                    failed[question.id] = made.reason
                values = (made.rounds, made.calls, made.tokens, made.cost_usd)
                spent = [a + b for a, b in zip(spent, values, strict=True)]
                progress(made)
    report = Report(
        tuple(done[q.id] for q in questions if q.id in done),
        tuple(rejected[q.id] for q in questions if q.id in rejected),
        failed,
        len(questions) - len(new),
        *spent,
    )
    if not failed and not manifest_of(out).exists():
        freeze(out, report.questions, report.rejected, {**how, **counts(report)}, _card(report, how))
    return report


# ------------------------------------------------------------------------------------------------------- files


def _kept(questions: Sequence[Question], out: Path) -> tuple[dict[str, Question], dict[str, Rejected]]:
    """What is there already.  Raises InputError for a file with other questions: it is not written over."""
    asked = {q.id: (q.question, q.answer) for q in questions}
    done = {q.id: q for q in rows_of(out, question_from_json)}
    for question in done.values():
        if asked.get(question.id) != (question.question, question.answer):
            raise InputError(
                f"{out} holds the question {question.id!r}, which is not in this source; give another --out"
            )
    rejected = {row["id"]: row for row in rows_of(rejects_of(out), dict)}
    return done, {
        id: Rejected(id, tuple(row["findings"]), tuple(row["rubrics"]))
        for id, row in rejected.items()
        if id in asked
    }


def _card(report: Report, how: Mapping[str, Any]) -> Card:
    return Card.of_questions(
        report.questions,
        "Questions with rubrics",
        str(how.get("command", "")),
        facts={key: value for key, value in {**how, **counts(report)}.items() if key != "command"},
    )


# ----------------------------------------------------------------------------------------------------- summary


def counts(report: Report) -> dict[str, float]:
    """Questions, rubrics and entities (both in all, and per question), and refused questions."""
    rubrics = sum(len(q.rubrics) for q in report.questions)
    entities = sum(len(entity_ids(q.rubrics)) for q in report.questions)
    number = len(report.questions)
    return {
        "questions": number,
        "rubrics": rubrics,
        "rubrics_per_question": rubrics / number if number else 0.0,
        "entities": entities,
        "entities_per_question": entities / number if number else 0.0,
        "rejected": len(report.rejected),
    }
