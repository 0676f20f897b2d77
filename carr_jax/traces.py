"""A folder of traces: every attempt as it ended, and in the end the traces that were kept, frozen.

attempts.jsonl     the journal: one line for each attempt that ended, in no order; a later line replaces an
                   earlier one of the same attempt
config.json        configuration and options that it was made with: it is not mixed with others
traces.jsonl.gz    the kept traces: question, trajectory, score, as `launch/score.py` reads them too
rejects.jsonl      all other attempts with the reasons
traces.jsonl.gz.manifest.json, .card.md     checksum, tokenizer and counts; the same for people
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carr_jax.data.card import Card, count_questions, write_card
from carr_jax.data.frozen import check_frozen, manifest_of
from carr_jax.journal import line_of, rows_of
from carr_jax.observe.files import atomic_file, write_json
from carr_jax.records import InputError, Question, Score, Trajectory
from carr_jax.rewards.rejection import Bar, best_first, defects
from carr_jax.stored import file_sha256, score_from_json, to_json, trajectory_from_json

TOO_MANY = "its question has better ones"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a question.  `refused` is why the teacher's words cannot stand in a trajectory, or ""."""

    trajectory: Trajectory
    score: Score
    refused: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.trajectory.question_id, self.trajectory.sample


@dataclass(frozen=True)
class Reject:
    """An attempt that is not kept."""

    question_id: str
    attempt: int
    reasons: tuple[str, ...]
    end: str
    outcome: float
    rubric: float | None


@dataclass(frozen=True)
class Chosen:
    """What rejection sampling makes of all attempts, both in the order of the questions."""

    kept: tuple[tuple[Question, Attempt], ...]
    rejects: tuple[Reject, ...]


def journal_of(folder: Path) -> Path:
    return folder / "attempts.jsonl"


def traces_of(folder: Path) -> Path:
    return folder / "traces.jsonl.gz"


def rejects_of(folder: Path) -> Path:
    return folder / "rejects.jsonl"


def claim(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes config.json.  Raises InputError when the folder was begun in another way.

    `facts["collecting"]` are the options that decide what comes out; the configuration itself is compared by
    `preflight`.
    """
    file = folder / "config.json"
    facts = json.loads(json.dumps(to_json(facts)))
    if file.is_file():
        before = json.loads(file.read_bytes()).get("collecting", {})
        now = facts["collecting"]
        if changed := sorted(key for key in {*before, *now} if before.get(key) != now.get(key)):
            raise InputError(f"{folder} holds other traces (other {', '.join(changed)}); give another --out")
    write_json(file, facts)


# ------------------------------------------------------------------------------------------------- the journal


def read_attempts(folder: Path) -> dict[tuple[str, int], Attempt]:
    """The attempts of a journal, by question and number; a torn last line is removed."""
    return {attempt.key: attempt for attempt in rows_of(journal_of(folder), _attempt)}


def _attempt(row: Mapping[str, Any]) -> Attempt:
    return Attempt(trajectory_from_json(row["trajectory"]), score_from_json(row["score"]), row["refused"])


# ------------------------------------------------------------------------------------------------- the choice


def reasons(attempt: Attempt, bar: Bar) -> tuple[str, ...]:
    """Why an attempt with a known score is not kept; () when it is."""
    return (attempt.refused,) if attempt.refused else defects(attempt.trajectory, attempt.score, bar)


def choose(
    questions: Sequence[Question], attempts: Mapping[tuple[str, int], Attempt], bar: Bar, keep: int
) -> Chosen:
    """At most `keep` traces of each question, the best of those that reach the bar.

    Raises ValueError for an attempt whose score is unknown.
    """
    kept: list[tuple[Question, Attempt]] = []
    rejects: list[Reject] = []
    of_question: dict[str, list[Attempt]] = {}
    for key in sorted(attempts):
        of_question.setdefault(key[0], []).append(attempts[key])
    for question in questions:
        tried = of_question.get(question.id, [])
        good = [a for a in tried if not reasons(a, bar)]
        best = [good[i] for i in best_first([(a.trajectory, a.score) for a in good])[:keep]]
        kept += [(question, attempt) for attempt in best]
        rejects += [_reject(a, reasons(a, bar) or (TOO_MANY,)) for a in tried if a not in best]
    return Chosen(tuple(kept), tuple(rejects))


def _reject(attempt: Attempt, why: tuple[str, ...]) -> Reject:
    trajectory, score = attempt.trajectory, attempt.score
    end = trajectory.end.value
    return Reject(trajectory.question_id, trajectory.sample, why, end, score.outcome, score.rubric)


# ------------------------------------------------------------------------------------------------- the files


def freeze(folder: Path, chosen: Chosen, card: Card, how: Mapping[str, Any]) -> None:
    """Writes traces, rejects, manifest and card; equal attempts give equal bytes.

    Verdicts stay in the journal: what a call took is not the same twice.
    """
    file = traces_of(folder)
    manifest_of(file).unlink(missing_ok=True)
    with (
        atomic_file(file) as stream,
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=6, mtime=0) as packed,
    ):
        for question, attempt in chosen.kept:
            score = dataclasses.replace(attempt.score, verdicts=())
            packed.write(line_of({"question": question, "trajectory": attempt.trajectory, "score": score}))
    with atomic_file(rejects_of(folder)) as stream:
        stream.writelines(map(line_of, chosen.rejects))
    counts = dict(count_questions(question for question, _ in chosen.kept))
    write_card(file, dataclasses.replace(card, counts=counts))
    write_json(manifest_of(file), to_json({"sha256": file_sha256(file), **how, "counts": card.facts}))


def read_traces(folder: Path, tokenizer_sha256: str) -> Iterator[Trajectory]:
    """The kept traces of a folder, in their order.

    Raises InputError for a folder whose collection has not ended or was changed since, and for tokens of
    another tokenizer: they would mean other words.
    """
    file = traces_of(folder)
    if not file.is_file() or not manifest_of(file).is_file():
        raise InputError(
            f"{folder}: no frozen traces ({file.name} and its manifest); let launch/collect_sft.py end"
        )
    check_frozen(file)
    if json.loads(manifest_of(file).read_bytes()).get("tokenizer_sha256") != tokenizer_sha256:
        raise InputError(
            f"{folder}: its tokens are those of another tokenizer; collect them with the policy that learns "
            "from them (--config.model.policy or --config.model.tokenizer of launch/collect_sft.py)"
        )
    with gzip.open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield trajectory_from_json(json.loads(line)["trajectory"])
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{file}:{number}: not a trace ({error!r})") from None
