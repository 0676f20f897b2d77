"""Synthetic groups and run folders for the tests of `observe`; no model, no search, no judge."""

from __future__ import annotations

import json
import pathlib
import random

import numpy as np

from carr_jax.observe.metrics import MetricsLog, rollout_metrics
from carr_jax.observe.viewer import write_trajectories
from carr_jax.records import (
    End,
    Group,
    Question,
    Rubric,
    RubricScore,
    Score,
    Seen,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
)

HOSTILE = "<script>alert('owned')</script>\x1b[2J"
NAMES = {"E0": "Ilsa Tørnqvist", "E1": "Port Mavra", "E2": "the Salt Archive", "E3": "Brânduşa 山田"}
RUBRICS = (
    Rubric("<E0> was born in <E1>."),
    Rubric("<E0> founded <E2> in 1931."),
    Rubric("<E2> stands in <E1>."),
    Rubric("<E3> was the first keeper of <E2>."),
    Rubric("<E3> studied glaciers before 1920."),
)
QUESTION = Question(
    id="fake-7",
    question="Who founded, in her town of birth, the archive whose first keeper had studied glaciers?",
    answer=NAMES["E0"],
    rubrics=RUBRICS,
    entities={key: (name,) for key, name in NAMES.items()},
    hops=4,
    source="synthetic",
)


def filled(text: str) -> str:
    for key, name in NAMES.items():
        text = text.replace(f"<{key}>", name)
    return text


def rubric_scores(states: str) -> tuple[RubricScore, ...]:
    """One letter per rubric: c connected, s supported, i identified, anything else not identified."""
    return tuple(
        RubricScore(r.text, filled(r.text) if x in "csi" else None, x in "csi", x in "cs", x == "c")
        for r, x in zip(RUBRICS, states, strict=False)
    )


def known(outcome: float, states: str = "", citations: int = 0, **fields) -> Score:
    """A known score; without `states` its rubrics were not judged."""
    scores = rubric_scores(states)
    rubric = sum(s.connected for s in scores) / len(scores) if scores else None
    return Score("ok", outcome, rubric, citations=citations, rubric_scores=scores, **fields)


def call(query: str, output: str, error: str | None = None) -> ToolCall:
    seen = (Seen("https://example.org/1", "A page", "snippet", output),)
    return ToolCall("search", {"query": query, "num": 3}, ToolResult(output, seen, error))


def trajectory(sample: int, end: End = End.ANSWERED, calls: int = 2, text: str = "", turns=None) -> Trajectory:
    """`calls` turns of 4 sampled tokens and 3 observed ones after a prompt of 5, then an end of 4 tokens."""
    answered = end is End.ANSWERED
    if turns is None:
        made = [
            Turn(
                5 + 7 * i,
                9 + 7 * i,
                f"I look for hop {i + 1}. {text}",
                "",
                (call(f"hop {i + 1} {text}", OUTPUT + text),),
            )
            for i in range(calls)
        ]
        start = 5 + 7 * calls
        reason = None if answered else "tool call is not closed"
        turns = (*made, Turn(start, start + 4, "Now I know enough.", f"{ANSWER} {text}", (), reason))
    mask = np.array([0] * 5 + ([1] * 4 + [0] * 3) * calls + [1] * 4, np.int8)
    return Trajectory(
        question_id=QUESTION.id,
        sample=sample,
        prompt_length=5,
        ids=np.arange(len(mask), dtype=np.int32),
        mask=mask,
        logprobs=np.where(mask == 1, np.float32(-0.1), np.float32(0)),
        versions=np.where(mask == 1, 3, -1).astype(np.int32),
        turns=turns,
        end=end,
        response=turns[-1].content if answered else None,
    )


OUTPUT = (
    "[1] The Salt Archive, Port Mavra\nThe archive was founded in 1931 by Ilsa Tørnqvist, born in the town. "
    "Its first keeper was Brânduşa 山田, remembered for her letters.\n[2] Keepers and their trades\n"
    "Several keepers came to the archive from the natural sciences; the records before 1920 are incomplete, "
    "and the list of expeditions kept in the reading room gives only surnames and seasons.\n"
)
ANSWER = (
    "The founder was **Ilsa Tørnqvist**, born in Port Mavra [1](https://example.org/1). She founded the Salt "
    "Archive there in 1931; its first keeper was Brânduşa 山田 [2](https://example.org/2)."
)


def group(
    trajectories: tuple[Trajectory, ...],
    scores: tuple[Score, ...],
    rewards: list[float],
    question: Question = QUESTION,
) -> Group:
    rewards_G = np.array(rewards, np.float64)
    kept = np.isfinite(rewards_G)
    advantages = np.where(kept, rewards_G - rewards_G[kept].mean() if kept.any() else 0.0, 0.0)
    return Group(question, trajectories, scores, rewards_G, advantages, kept)


def random_group(rng: random.Random, skill: float, text: str = "") -> Group:
    """Eight siblings that get better with `skill` in [0, 1]."""
    trajectories, scores, rewards = [], [], []
    for sample in range(8):
        right = rng.random() < skill
        states = "".join(rng.choice("csi-" if rng.random() > skill else "ccs") for _ in RUBRICS)
        verdict = Verdict("outcome", "ok", right, "", 420, 0.0021, 0.8)
        end = rng.choice([End.ANSWERED] * 9 + [End.FORMAT_ERROR, End.CONTEXT_BUDGET, End.TOOL_ERROR])
        score = known(float(right), states, rng.randint(0, 6), verdicts=(verdict,), skipped_calls=1)
        if end is End.TOOL_ERROR:
            score = Score("unknown", reason="the search server did not answer")
        elif end is not End.ANSWERED:
            score = known(0.0)
        trajectories.append(trajectory(sample, end, rng.randint(1, 5), text))
        scores.append(score)
        rewards.append(score.outcome * (0.7 + 0.3 * (score.rubric or 0)) if score.known else np.nan)
    return group(tuple(trajectories), tuple(scores), rewards)


def write_run(path: pathlib.Path, steps: int, text: str = "", seed: int = 0) -> pathlib.Path:
    """A whole run folder; `text` is put into thoughts, queries, observations and answers."""
    rng = random.Random(seed)
    log = MetricsLog(path / "metrics.jsonl")
    config = {"reward": {"mix": "carr_paper", "alpha": 0.3}, "model": {"name": "tiny"}, "note": text}
    (path / "config.json").write_text(json.dumps(config))
    for step in range(1, steps + 1):
        groups = [random_group(rng, 0.15 + 0.6 * step / steps, text) for _ in range(2)]
        log.append({"step": step, **rollout_metrics(groups), **_learn_metrics(rng, step / steps)})
        if step in (1, (steps + 1) // 2, steps):
            write_trajectories(path / "trajectories" / f"step_{step:06d}.jsonl.gz", groups)
    return path


def _learn_metrics(rng: random.Random, progress: float) -> dict[str, float]:
    return {
        "learn/entropy": 0.9 - 0.5 * progress + 0.05 * rng.random(),
        "learn/grad_norm": 0.4 + 0.3 * rng.random(),
        "learn/ratio_mean": 1 + 0.002 * rng.gauss(0, 1),
        "learn/ratio_outside_10": 0.02 * rng.random(),
        "learn/ratio_outside_half": 0.004 * rng.random(),
        "learn/sequence_outliers": 0.01 * rng.random(),
        "learn/icepop_masked": 0.004 * rng.random(),
        "learn/clipped": 0.002 * rng.random(),
        "learn/tokens": 21000.0,
        "time/rollout_s": 40 + 8 * rng.random(),
        "time/reward_s": 6 + rng.random(),
        "time/train_s": 22 + rng.random(),
    }
