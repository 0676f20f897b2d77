"""Makes a file of questions from a graph: the n-th candidate depends on the graph, the plan and n alone.

OUT                 the questions, in the order of their candidates, as `data.sources` reads them
OUT.rejects         those that did not pass a model or the attempts of an agent: {"id", "findings"}
OUT.plan.json       while it is being made: how; the same command goes on, another one is refused
OUT.manifest.json   once all is done: SHA-256 of OUT, how it was made, counts
OUT.card.md         the same for people
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from carr_jax.data.card import Card
from carr_jax.data.drafts import is_unique
from carr_jax.data.frozen import check_frozen, freeze, manifest_of, rejects_of
from carr_jax.data.graph import Graph
from carr_jax.data.obscuring import obscured
from carr_jax.data.synthesis import STRATEGIES, Shape
from carr_jax.data.wording import faults, question_of
from carr_jax.journal import append, appending, as_they_come, rows_of
from carr_jax.observe.files import write_json
from carr_jax.records import InputError, Question
from carr_jax.rewards.rubric_maker import Made
from carr_jax.rewards.rubrics import entity_ids
from carr_jax.stored import question_from_json, to_json

Finish = Callable[[Question], Awaitable[Made]]
_PATIENCE = (200, 30)  # candidates that are tried: so many, and so many more for each question wanted


@dataclass(frozen=True)
class Plan:
    """What is drafted: strategies and hops are drawn for each candidate, `starts` are of one split ("" = any).

    `obscure` makes names and dates vague as far as the graph allows (`data.obscuring`).
    """

    source: str
    strategies: tuple[str, ...] = tuple(STRATEGIES)
    hops: tuple[int, ...] = (2, 3, 4)
    most_links: int = 40
    seed: int = 0
    split: str = ""
    obscure: bool = True


@dataclass(frozen=True)
class Rejected:
    """A question that did not pass, and why."""

    id: str
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What came of a plan.

    `refused` counts the candidates that came to nothing, by reason; `failed` maps the ids whose fate is not
    known to the reason, they are tried again.  `kept` were there already; money is of this time only.
    """

    questions: tuple[Question, ...]
    rejected: tuple[Rejected, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    candidates: int = 0
    kept: int = 0
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


# --------------------------------------------------------------------------------------------------- candidates


def candidates(graph: Graph, plan: Plan) -> Iterator[Question | str]:
    """The endless stream of candidates: a question, or why there is none.  Raises InputError for no start."""
    starts = sorted(e.id for e in graph.entities.values() if plan.split in ("", e.split))
    if not starts:
        splits = ", ".join(sorted({e.split for e in graph.entities.values()} - {""})) or "none"
        raise InputError(f"no entity of the graph has the split {plan.split!r}; it has {splits}")
    ids: set[str] = set()
    number = 0
    while True:
        made = candidate(graph, plan, starts, number)
        number += 1
        if isinstance(made, Question):
            made = "repeats an earlier question" if made.id in ids else made
        if isinstance(made, Question):
            ids.add(made.id)
        yield made


def candidate(graph: Graph, plan: Plan, starts: list[str], number: int) -> Question | str:
    """The candidate of this number, a pure function of its arguments; or why there is none."""
    rng = Random(f"{plan.seed}/{number}")
    strategy = rng.choice(plan.strategies)
    shape = Shape(rng.choice(plan.hops), plan.most_links)
    draft = STRATEGIES[strategy](graph, rng, rng.choice(starts), shape)
    if draft is None:
        return "the graph does not lead so far"
    if not is_unique(graph, draft):
        return "the graph has more than one answer"
    if plan.obscure:
        draft = obscured(graph, draft, rng)
    question = question_of(graph, draft, plan.source, plan.split or "train")
    found = faults(question)
    return f"lint: {kind(found[0])}" if found else question


def kind(finding: str) -> str:
    """A finding without what it is about."""
    return finding.partition('") ')[2] or finding.partition("names '")[0].strip()


# ------------------------------------------------------------------------------------------------------ making


async def make_file(
    graph: Graph,
    plan: Plan,
    count: int,
    out: Path,
    finish: Finish,
    how: Mapping[str, Any],
    at_once: int = 16,
    progress: Callable[[int], Any] = lambda passed: None,
    command: str = "",
) -> Report:
    """The first `count` candidates that pass `finish`, in order; each result is on disk as soon as it is there.

    Which they are does not depend on what was done first, nor on kills in between; a larger count goes on from
    a smaller one.  `how` goes into the manifest, `command` into the card.  Raises InputError when `out` was
    changed after it was frozen or is of another plan, and when the graph gives too few questions; and whatever
    `finish` raises.
    """
    check_frozen(out)
    plan_of_file = to_json({**to_json(plan), **how})
    _refuse_other_plan(out, plan_of_file, count)
    making = _Making(candidates(graph, plan), count, out)
    wanted = making.wanted()
    if (first := next(wanted, None)) is not None:
        _begin(out, plan_of_file)
        with appending(out) as clean, appending(rejects_of(out)) as unclean:
            async for question, made in as_they_come(chain([first], wanted), finish, at_once):
                making.take(question, made, clean, unclean)
                progress(making.passed)
    report = making.report()
    if len(report.questions) + len(report.failed) < count:
        reasons = ", ".join(f"{n} times {reason}" for reason, n in Counter(report.refused).most_common(3))
        raise InputError(
            f"the graph gave {len(report.questions)} questions of {count} in {report.candidates} attempts "
            f"({reasons}); give a smaller --count, other --hops or --strategy, or a larger graph"
        )
    if not report.failed and not manifest_of(out).exists():
        facts = {**plan_of_file, **counts(report)}
        freeze(out, report.questions, report.rejected, facts, _card(report, facts, command))
        _plan_file(out).unlink(missing_ok=True)
    return report


class _Making:
    """The candidates so far, and what became of them.

    `passed` are those that are questions of the file, or may be when they are asked for again.
    """

    def __init__(self, stream: Iterator[Question | str], count: int, out: Path) -> None:
        self.stream, self.count = stream, count
        self.tried: list[Question | str] = []
        self.done = {q.id: q for q in rows_of(out, question_from_json)}
        self.rejected = {r.id: r for r in rows_of(rejects_of(out), _rejected)}
        self.failed: dict[str, str] = {}
        self.before = frozenset(self.done)
        self.passed = 0
        self.calls, self.tokens, self.cost_usd = 0, 0, 0.0

    def wanted(self) -> Iterator[Question]:
        """Candidates of which nothing is known, until enough have passed or too many have not."""
        while self.passed < self.count and len(self.tried) < _PATIENCE[0] + _PATIENCE[1] * self.count:
            made = next(self.stream)
            self.tried.append(made)
            if isinstance(made, str) or made.id in self.rejected:
                continue
            if made.id in self.done:
                self.passed += 1
            else:
                yield made

    def take(self, question: Question, made: Made, clean: BinaryIO, unclean: BinaryIO) -> None:
        """What became of a candidate, on disk if it is known."""
        self.calls, self.tokens = self.calls + made.calls, self.tokens + made.tokens
        self.cost_usd += made.cost_usd
        if made.question is not None:
            self.done[question.id] = made.question
            append(clean, made.question)
        elif made.findings:
            self.rejected[question.id] = Rejected(question.id, made.findings)
            append(unclean, self.rejected[question.id])
            return
        else:
            self.failed[question.id] = made.reason
        self.passed += 1

    def report(self) -> Report:
        """The first `count` that passed, and what stood between them."""
        questions, rejected, failed, refused = [], [], {}, Counter()
        candidates = 0
        for made in self.tried:
            if len(questions) == self.count:
                break
            candidates += 1
            if isinstance(made, str):
                refused[made] += 1
            elif made.id in self.done:
                questions.append(self.done[made.id])
            elif made.id in self.rejected:
                rejected.append(self.rejected[made.id])
                refused[kind(rejected[-1].findings[0])] += 1
            else:
                failed[made.id] = self.failed[made.id]
        kept = sum(question.id in self.before for question in questions)
        money = (self.calls, self.tokens, self.cost_usd)
        return Report(tuple(questions), tuple(rejected), dict(refused), failed, candidates, kept, *money)


# ------------------------------------------------------------------------------------------------ files, counts


def _plan_file(out: Path) -> Path:
    return out.with_name(out.name + ".plan.json")


def _begin(out: Path, plan: Mapping[str, Any]) -> None:
    """The plan is there before the first row, and the manifest gone."""
    write_json(_plan_file(out), plan)
    manifest_of(out).unlink(missing_ok=True)


def _refuse_other_plan(out: Path, plan: Mapping[str, Any], count: int) -> None:
    """Raises InputError when `out` holds something else than the begin of this plan."""
    known = next((file for file in (_plan_file(out), manifest_of(out)) if file.exists()), None)
    if known is None:
        if out.exists():
            raise InputError(f"{out} was not made by this program; give another --out")
        return
    before = json.loads(known.read_bytes())
    for key, value in plan.items():
        if before.get(key) != value:
            raise InputError(
                f"{out} was made with {key}={before.get(key)!r}, and now it is {value!r}; give another --out"
            )
    if before.get("questions", 0) > count:
        raise InputError(f"{out} holds {before['questions']} questions already; give --count, or another --out")


def _rejected(row: Mapping[str, Any]) -> Rejected:
    return Rejected(row["id"], tuple(row["findings"]))


def counts(report: Report) -> dict[str, Any]:
    """The statistics of a file: how many questions of what kind and size, and why others were refused."""
    questions = report.questions
    return {
        "questions": len(questions),
        "strategies_of_questions": dict(sorted(Counter(q.metadata["strategy"] for q in questions).items())),
        "hops_of_questions": {str(n): k for n, k in sorted(Counter(q.hops for q in questions).items())},
        "rubrics_per_question": _mean([len(q.rubrics) for q in questions]),
        "entities_per_question": _mean([len(entity_ids(q.rubrics)) for q in questions]),
        "candidates": report.candidates,
        "refused": dict(sorted(report.refused.items())),
    }


def _card(report: Report, facts: Mapping[str, Any], command: str) -> Card:
    title = f"Questions from the graph {facts['source']}"
    return Card.of_questions(report.questions, title, command, seed=facts["seed"], facts=facts)


def _mean(values: list[int]) -> float:
    return round(sum(values) / len(values), 3) if values else 0.0
