"""The gate before training: what a judge was measured to be worth, and whether that is enough.

`launch/calibrate_judge.py` writes a report of one judge; a run whose `config.judge.at_least` is above 0 starts
only when that report is about its own judge (the same model, asked in the same words with the same limits) and
no step was right less often.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from carr_jax.observe.files import write_json
from carr_jax.records import Question, Rubric
from carr_jax.rewards import prompts
from carr_jax.rewards.calibration import Measure
from carr_jax.stored import to_json

_LIMITS = (4_000, 8_000)  # of the prompts whose words are compared
_SAMPLE = Question(
    "q", "Who?", "A", rubrics=(Rubric("<E0> knows <E1>."),), entities={"E0": ("A",), "E1": ("B",)}
)


def judge_facts(config: ConfigDict) -> dict[str, Any]:
    """All that decides what a judge says, so that another judge is told from it; not where it is asked."""
    judge = config.judge
    if judge.kind == "exact":
        return {"kind": "exact"}
    names = ("kind", "model", "temperature", "max_tokens", "tries", "votes", "page_bytes", "pages_bytes")
    return {name: judge[name] for name in names} | {"words": _words()}


def _words() -> str:
    """A fingerprint of what is said to a judge: the three prompts about one small question."""
    said = (
        prompts.outcome_prompt(_SAMPLE, "A", _LIMITS[1]),
        prompts.identify_prompt(_SAMPLE, "A", _LIMITS[1]),
        prompts.support_prompt(_SAMPLE, {"E0": "A", "E1": "B"}, (0,), {"https://w.example": "A"}, *_LIMITS),
    )
    return hashlib.sha256(json.dumps([p.messages for p in said]).encode()).hexdigest()[:16]


def write_report(file: Path, config: ConfigDict, measures: Mapping[str, Measure], times: int) -> None:
    """What was measured of the judge of `config`, as the gate reads it."""
    write_json(file, {"judge": judge_facts(config), "times": times, "steps": to_json(measures)})


def gate_problems(config: ConfigDict) -> list[str]:
    """Why a run must not start with its judge, in one line; empty when the gate is open."""
    judge = config.judge
    if not judge.at_least:
        return []
    said = f"config.judge.at_least={judge.at_least:g}: "
    remedy = "; measure it with launch/calibrate_judge.py, or give config.judge.at_least=0.0"
    try:
        report = json.loads(Path(judge.calibration).read_bytes())
        about, accuracies = report["judge"], {s: float(m["accuracy"]) for s, m in report["steps"].items()}
    except OSError:
        return [f"{said}this judge was not measured: there is no {judge.calibration}{remedy}"]
    except (AttributeError, KeyError, TypeError, ValueError):
        return [f"{said}{judge.calibration} is no report of a calibration{remedy}"]
    facts = judge_facts(config)
    if other := sorted(name for name in {*facts, *about} if facts.get(name) != about.get(name)):
        return [f"{said}{judge.calibration} is about another judge (other {', '.join(other)}){remedy}"]
    low = [f"{step} {accuracy:.1%}" for step, accuracy in accuracies.items() if not accuracy >= judge.at_least]
    if not accuracies or low:
        return [f"{said}this judge is right too seldom ({', '.join(low) or 'no step was measured'}){remedy}"]
    return []
