"""Scores a file of trajectories: verdicts beside it, and a summary in the terms of the paper's Table 2."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carr_jax.observe.files import atomic_file
from carr_jax.records import End, InputError, Question, Score, Trajectory
from carr_jax.rewards.carr import score_trajectory
from carr_jax.rewards.history import pairs
from carr_jax.rewards.judge import Judge
from carr_jax.stored import score_from_json, to_json

IN_FLIGHT = 64  # trajectories that a judge has before it at a time


@dataclass(frozen=True)
class Item:
    """A trajectory of the file: where it stands, and a key that changes with it and with how it is judged."""

    place: str
    key: str
    question: Question
    trajectory: Trajectory


@dataclass(frozen=True)
class Bad:
    """A row that is no trajectory."""

    place: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """One line of the verdict file."""

    place: str
    key: str
    question_id: str
    end: End
    tool_calls: int
    score: Score


@dataclass(frozen=True)
class Scored:
    """What became of a file; `kept` verdicts were there already."""

    verdicts: tuple[Verdict, ...]
    bad: tuple[Bad, ...]
    kept: int


# -------------------------------------------------------------------------------------------------------- files


def read_items(path: Path, method: str) -> Iterator[Item | Bad]:
    """The trajectories of a .jsonl(.gz) or .json file, in any shape that `rewards.history` knows.

    `method` names how they are judged.  Raises InputError for a file that cannot be read.
    """
    for place, text in _texts(path):
        digest = hashlib.sha256(method.encode() + b"\n" + text).hexdigest()[:20]
        try:
            found = list(pairs(json.loads(text), place))
        except KeyError as error:
            yield Bad(place, f"the key {error} is missing")
        except (AttributeError, IndexError, RecursionError, TypeError, ValueError) as error:
            yield Bad(place, " ".join(str(error).split())[:300])
        else:
            yield from (Item(place, f"{digest}-{i}", *pair) for i, pair in enumerate(found))


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    """("file:line", JSON text) of each row; a .json file is one row, or a list of them."""
    try:
        if path.suffix == ".json":
            whole = json.loads(path.read_bytes())
            rows = whole if isinstance(whole, list) else [whole]
            yield from ((f"{path}[{i}]", json.dumps(row).encode()) for i, row in enumerate(rows))
            return
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            yield from ((f"{path}:{n}", line) for n, line in enumerate(lines, 1) if line.strip())
    except (EOFError, gzip.BadGzipFile, ValueError) as error:
        raise InputError(f"{path}: not a whole file of its kind ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def read_verdicts(path: Path) -> dict[str, Verdict]:
    """The verdicts that are known, by key; a line that was cut off by a kill counts for nothing."""
    found: dict[str, Verdict] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
            verdict = Verdict(**{**row, "end": End(row["end"]), "score": score_from_json(row["score"])})
        except (KeyError, TypeError, ValueError):
            continue
        if verdict.score.known:
            found[verdict.key] = verdict
    return found


def _line(verdict: Verdict) -> bytes:
    return json.dumps(to_json(verdict)).encode() + b"\n"


# ------------------------------------------------------------------------------------------------------ scoring


async def score_file(
    path: Path,
    out: Path,
    judge: Judge,
    method: tuple[str, str],
    progress: Callable[[int], Any] = lambda count: None,
) -> Scored:
    """Score what `out` has no known verdict for, and write all verdicts there in the order of the file.

    `method` is (name of the judge, reading of citations).  Each verdict is in `out` as soon as it is there.
    """
    known = read_verdicts(out)
    done: dict[str, Verdict] = {}
    order: dict[str, None] = {}
    bad: list[Bad] = []

    def new() -> Iterator[Item]:
        for item in read_items(path, "\n".join(method)):
            if isinstance(item, Bad):
                bad.append(item)
            elif item.key not in order:
                order[item.key] = None
                if item.key not in known:
                    yield item

    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("ab") as file:
        if file.tell():
            file.write(b"\n")  # ends a line that was cut off
        async for verdict in _judged(new(), judge, method[1]):
            done[verdict.key] = verdict
            file.write(_line(verdict))
            file.flush()
            progress(len(done))
    verdicts = tuple(done.get(key) or known[key] for key in order)
    with atomic_file(out) as file:
        file.writelines(map(_line, verdicts))
    return Scored(verdicts, tuple(bad), len(order) - len(done))


async def _judged(items: Iterable[Item], judge: Judge, citations: str) -> AsyncIterator[Verdict]:
    """The verdicts as they come, some trajectories at a time."""
    running: set[asyncio.Task[Verdict]] = set()
    try:
        for item in items:
            running.add(asyncio.create_task(_judge(item, judge, citations)))
            if len(running) >= IN_FLIGHT:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        for task in asyncio.as_completed(running):
            yield await task
    finally:
        for task in running:
            task.cancel()


async def _judge(item: Item, judge: Judge, citations: str) -> Verdict:
    score = await score_trajectory(item.question, item.trajectory, judge, citations=citations)
    calls = len(item.trajectory.calls)
    return Verdict(item.place, item.key, item.question.id, item.trajectory.end, calls, score)


# ------------------------------------------------------------------------------------------------------ summary


def means(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Per finished trajectory whose score is known; empty when there is none."""
    scores = [v.score for v in verdicts if v.end is End.ANSWERED and v.score.known]
    rows = [
        {
            "cited pages": s.citations,
            "rubrics": len(s.rubric_scores),
            "identified": sum(r.identified for r in s.rubric_scores),
            "supported": sum(r.supported for r in s.rubric_scores),
            "connected": sum(r.connected for r in s.rubric_scores),
            "outcome": s.outcome,
            "rubric reward": s.rubric or 0.0,
        }
        for s in scores
    ]
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]} if rows else {}


def ends(verdicts: Sequence[Verdict]) -> Counter[str]:
    """How many trajectories ended how; those whose score is unknown are counted as "unknown" alone."""
    return Counter(v.end.value if v.score.known else "unknown" for v in verdicts)


def spent(verdicts: Sequence[Verdict]) -> tuple[int, int, float]:
    """Judge calls (without replayed ones), their tokens, and US dollars."""
    calls = [v for verdict in verdicts for v in verdict.score.verdicts if not v.cached]
    return sum(v.calls for v in calls), sum(v.tokens for v in calls), sum(v.cost_usd for v in calls)
