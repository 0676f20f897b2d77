"""Collecting traces: what is kept and why not, the same at the end after any kill, frozen, within a budget."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))
from school import ANNA, ANSWER, CHAT, ENTITIES, LYME, PAGES, RUBRICS, Teacher, lesson, question, rollouts
from stub import Stub

from carr_jax import config as defaults
from carr_jax.collecting import Played, TeacherStopped, by_expert, by_rewards, collect
from carr_jax.data.frozen import manifest_of
from carr_jax.llm.errors import BudgetSpent
from carr_jax.records import End, InputError, Question
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rewards.rejection import Bar
from carr_jax.scoring import read_items
from carr_jax.stored import to_json
from carr_jax.teaching import Options, Prices, run_collection
from carr_jax.traces import choose, read_attempts, read_traces, rejects_of, traces_of

ROOT = Path(__file__).parents[1]
WORDS = ("well", "wrong", "guess", "malformed", "control", "endless", "well")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with questions, pages and a tokenizer, and the configuration of a small town."""
    monkeypatch.setenv("TEACHER_KEY", "k")
    CHAT.tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "data").mkdir()
    asked = [question(f"q{i}", word) for i, word in enumerate(WORDS)]
    write(tmp_path / "data" / "questions.jsonl", map(to_json, asked))
    write(tmp_path / "data" / "corpus.jsonl", map(to_json, PAGES))
    config = defaults.rl()
    config.data.source, config.data.path = "files", str(tmp_path / "data")
    config.model.tokenizer = str(tmp_path / "tokenizer")
    config.agent.context, config.agent.turns, config.agent.turn_tokens = 20_000, 6, 4_000
    config.rollout.in_flight = 3
    return tmp_path, config


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def options(folder, stub, **more):
    teacher = f"{stub.url} TEACHER_KEY stub" if stub else more.pop("teacher")
    return Options(folder / "data" / "questions.jsonl", folder / "traces", teacher, **more)


def taught(place, mind=lesson, script=(), **more):
    """(statistics, what the endpoint was asked) of a collection with the stub as the teacher."""
    folder, config = place

    async def run():
        async with Teacher(mind) as stub:
            stub.script = list(script)
            port = {"stub": stub.port}
            given = options(folder, stub, **more)
            try:
                facts = await run_collection(given, config, "the command")
            finally:
                calls.extend(stub.calls)
            assert port
            return facts

    calls: list = []
    return asyncio.run(run()), calls


def frozen(folder):
    return [path(folder / "traces").read_bytes() for path in (traces_of, rejects_of)]


# ------------------------------------------------------------------------------------------- what is kept


def test_what_is_kept_and_why_not(place):
    """By hand: two good ones; a wrong answer, a guess without pages, two messages that are none, one endless."""
    facts, _ = taught(place)
    folder = place[0] / "traces"
    rows = [json.loads(line) for line in gzip.open(traces_of(folder))]
    assert [row["question"]["id"] for row in rows] == ["q0", "q6"]
    rejects = [json.loads(line) for line in rejects_of(folder).read_text().splitlines()]
    assert [r["question_id"] for r in rejects] == ["q1", "q2", "q3", "q4", "q5"]
    assert [r["reasons"][0].partition(":")[0] for r in rejects] == [
        "outcome too low",
        "rubric reward too low",
        "a tool call is not valid JSON",
        "it holds the control token <|im_end|>",
        "turn budget",
    ]
    assert (facts["attempts"], facts["kept traces"], facts["questions with a trace"]) == (7, 2, 2)
    manifest = json.loads(manifest_of(traces_of(folder)).read_text())
    assert manifest["tokenizer_sha256"] == CHAT.tokenizer.content_hash()
    card = (folder / "traces.jsonl.gz.card.md").read_text()
    assert "the command" in card and "| kept traces | 2 |" in card and "rejected: turn budget | 1" in card
    assert "TEACHER_KEY" not in (folder / "attempts.jsonl").read_text()


def test_a_trace_is_read_with_its_tokens_and_by_the_scorer(place):
    taught(place)
    folder = place[0] / "traces"
    (first, second) = read_traces(folder, CHAT.tokenizer.content_hash())
    assert first.end is End.ANSWERED and first.response == ANSWER
    assert first.mask.sum() == sum(t.end - t.start for t in first.turns)
    items = list(read_items(traces_of(folder), "m"))
    assert [item.question.id for item in items] == ["q0", "q6"]
    with pytest.raises(InputError, match="another tokenizer"):
        list(read_traces(folder, "0" * 64))
    data = traces_of(folder).read_bytes()
    traces_of(folder).write_bytes(data[:-1] + b"x")
    with pytest.raises(InputError, match="changed since it was frozen"):
        list(read_traces(folder, CHAT.tokenizer.content_hash()))
    manifest_of(traces_of(folder)).unlink()
    with pytest.raises(InputError, match="let launch/collect_sft.py end"):
        list(read_traces(folder, CHAT.tokenizer.content_hash()))


def test_at_most_so_many_of_a_question_and_the_best(place):
    """Three attempts each: the draw decides; of the right ones the shortest is kept."""

    def mind(body):
        message = lesson(body)
        return message | {"reasoning_content": "x" * (body["seed"] % 7)} if message.get("tool_calls") else message

    facts, _ = taught(place, mind, attempts=3, keep=2)
    rows = [json.loads(line) for line in gzip.open(traces_of(place[0] / "traces"))]
    assert [row["question"]["id"] for row in rows] == ["q0", "q0", "q6", "q6"]
    lengths = [len(row["trajectory"]["ids"]) for row in rows]
    tried = read_attempts(place[0] / "traces")
    assert lengths[:2] == sorted(len(tried["q0", n].trajectory.ids) for n in range(3))[:2]
    assert facts["rejected: its question has better ones"] == 2
    samples = [row["trajectory"]["sample"] for row in rows]
    assert len(set(samples[:2])) == 2


# --------------------------------------------------------------------------------------- failures and resuming


def test_what_failed_is_unknown_and_asked_again_by_the_same_command(place):
    with pytest.raises(InputError, match="1 of 7 attempts are unknown.*HTTP 400.*the same command asks again"):
        taught(place, script=["http_400"])
    assert not manifest_of(traces_of(place[0] / "traces")).exists()
    folder = place[0] / "traces"
    assert sum(a.score.known for a in read_attempts(folder).values()) == 6
    facts, calls = taught_again(place)
    assert facts["kept traces"] == 2
    assert {c["messages"][0]["content"][:80] for c in calls} == {question("q0").question + CHAT.suffix[:0]} or calls


def taught_again(place):
    """The same folder with a stub at another port: the teacher's name is the same command's."""
    folder, config = place
    file = folder / "traces" / "config.json"
    row = json.loads(file.read_text())
    file.unlink()
    facts, calls = taught(place)
    assert json.loads(file.read_text())["config"] == row["config"]
    return facts, calls
