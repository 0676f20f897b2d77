"""How good a judge is: decisions whose right value is known, judged several times (CaRR, appendix C).

A label is one call of one step.  It holds one decision (outcome), one for each entity (identify) or one for
each statement (support).  A decision that stays unknown is not right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carr_jax.records import Question, Verdict
from carr_jax.rewards import carr
from carr_jax.rewards.judge import Judge
from carr_jax.rewards.matching import fold_name
from carr_jax.stored import question_from_json

STEPS = ("outcome", "identify", "support")
# How often the paper's judge agreed with humans: 128 identifications and 164 statements of 10 trajectories.
HUMAN = {"identify": 0.977, "support": 0.951}
_UNKNOWN = "(unknown)"


@dataclass(frozen=True)
class Label:
    """A judge call whose verdict is known; `kind` says in a word what it is about.

    `expected` is a bool for outcome; for identify {entity: accepted names}, where None accepts that nobody is
    named; for support one bool for each of the rubrics `indices`, filled with `names` and read in `pages`.
    """

    step: str
    kind: str
    question: Question
    expected: Any
    response: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    indices: tuple[int, ...] = ()
    pages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """One thing that a judge decided, by name; `said` is in a form in which equal decisions are equal."""

    name: str
    said: Any
    right: bool

    @property
    def known(self) -> bool:
        return self.said != _UNKNOWN


@dataclass(frozen=True)
class Measure:
    """How a judge did on one step; the four rates are shares of decisions, `invalid` one of replies.

    `agreement` counts decisions that were known and the same all times; `cost_usd` is the mean of one call.
    """

    labels: int
    decisions: int
    accuracy: float
    agreement: float
    unknown: float
    invalid: float
    calls: int
    cost_usd: float


def label_from_json(row: Mapping[str, Any]) -> Label:
    """Inverse of `stored.to_json(label)`.  Raises KeyError, TypeError or ValueError that says what is wrong."""
    question, indices = question_from_json(row["question"]), tuple(row.get("indices", ()))
    label = Label(**{**row, "question": question, "indices": indices})
    if label.step not in STEPS:
        raise ValueError(f"step {label.step!r} is not one of {', '.join(STEPS)}")
    expected, fits = label.expected, False
    if label.step == "outcome":
        fits = isinstance(expected, bool)
    elif label.step == "identify":
        fits = isinstance(expected, dict) and all(isinstance(names, list) for names in expected.values())
    else:
        flags = isinstance(expected, list) and all(isinstance(flag, bool) for flag in expected)
        fits = flags and len(expected) == len(label.indices)
    if not fits:
        raise ValueError(f"expected {expected!r:.80} is not what the step {label.step} decides")
    return label


# ---------------------------------------------------------------------------------------------------- judging


async def judge_labels(labels: Sequence[Label], judge: Judge) -> list[Verdict]:
    """The verdict on each label; what fails is unknown.  Raises calls.errors.CannotGoOn."""
    return list(await asyncio.gather(*(carr.ask(label.step, _call(label, judge)) for label in labels)))


async def _call(label: Label, judge: Judge) -> Verdict:
    if label.step == "outcome":
        return await judge.outcome(label.question, label.response)
    if label.step == "identify":
        return await judge.identify(label.question, label.response)
    return await judge.support(label.question, label.names, label.indices, label.pages)


def decisions(label: Label, verdict: Verdict) -> list[Decision]:
    """What a verdict decided, as the reward reads it: an unusable verdict decides nothing."""
    if label.step == "outcome":
        known = verdict.status == "ok" and isinstance(verdict.parsed, bool)
        said = {"answer": bool(verdict.parsed)} if known else None
        return _decided({"answer": [label.expected]}, said)
    if label.step == "identify":
        names = carr.valid_names(verdict, tuple(label.expected))
        accepted = {e: [n and fold_name(n) for n in ns] for e, ns in label.expected.items()}
        return _decided(accepted, names and {e: n and fold_name(n) for e, n in names.items()})
    flags = carr.valid_flags(verdict, label.indices)
    expected = dict(zip(label.indices, label.expected, strict=True))
    accepted = {label.question.rubrics[i].text: [flag] for i, flag in expected.items()}
    return _decided(accepted, flags and {label.question.rubrics[i].text: flag for i, flag in flags.items()})


def _decided(accepted: Mapping[str, Sequence[Any]], said: Mapping[str, Any] | None) -> list[Decision]:
    if said is None:
        return [Decision(name, _UNKNOWN, False) for name in accepted]
    return [Decision(name, said[name], said[name] in values) for name, values in accepted.items()]


# -------------------------------------------------------------------------------------------------- measuring


def measure(labels: Sequence[Label], times: Sequence[Sequence[Verdict]]) -> dict[str, Measure]:
    """For each step that has labels how the judge did; `times[k][n]` is its k-th verdict on label n."""
    found = {}
    for step in STEPS:
        mine = [n for n, label in enumerate(labels) if label.step == step]
        if mine:
            rows = [[decisions(labels[n], verdicts[n]) for verdicts in times] for n in mine]
            found[step] = _measure(rows, [verdicts[n] for verdicts in times for n in mine])
    return found


def _measure(rows: Sequence[Sequence[Sequence[Decision]]], verdicts: Sequence[Verdict]) -> Measure:
    """`rows[n][k]` are the decisions of the k-th verdict on the n-th label of a step."""
    every = [d for row in rows for time in row for d in time]
    same = [repeated for row in rows for repeated in zip(*row, strict=True)]
    agreed = [all(d.known and d.said == ds[0].said for d in ds) for ds in same]
    calls = sum(v.calls for v in verdicts)
    return Measure(
        labels=len(rows),
        decisions=len(same),
        accuracy=sum(d.right for d in every) / len(every),
        agreement=sum(agreed) / len(agreed),
        unknown=sum(not d.known for d in every) / len(every),
        invalid=sum(v.invalid for v in verdicts) / calls if calls else 0.0,
        calls=calls,
        cost_usd=sum(v.cost_usd for v in verdicts) / len(verdicts),
    )


def cost_per_trajectory(measures: Mapping[str, Measure]) -> float:
    """US dollars of one call of each step."""
    return sum(m.cost_usd for m in measures.values())


def mistakes(labels: Sequence[Label], verdicts: Sequence[Verdict]) -> list[tuple[Label, Decision]]:
    """The decisions of one time that are not right."""
    pairs = zip(labels, verdicts, strict=True)
    return [(label, d) for label, verdict in pairs for d in decisions(label, verdict) if not d.right]
