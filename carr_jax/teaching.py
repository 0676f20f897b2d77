"""A collection of traces as a command describes it: whose questions, who teaches, who grades."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from carr_jax.agent.chat import Chat
from carr_jax.agent.tokenizer import Tokenizer
from carr_jax.calls.ledger import Ledger, Prices
from carr_jax.calls.patience import Patience
from carr_jax.collecting import Teacher, by_chat, by_engine, by_expert, by_history, by_rewards, collect, finish
from carr_jax.config import flatten
from carr_jax.data.card import Card
from carr_jax.data.conversations import History, read_histories
from carr_jax.data.frozen import check_frozen
from carr_jax.data.sources import read_questions
from carr_jax.judging import make_judge
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import parse_endpoint
from carr_jax.preflight import endpoint_problems, preflight
from carr_jax.records import InputError, Question, Turn
from carr_jax.rewards.history import read_messages
from carr_jax.rewards.rejection import Bar
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.search.world import WorldConfig, build_world
from carr_jax.stored import to_json
from carr_jax.task import load_tools, make_budgets, ready
from carr_jax.traces import Attempt, claim, traces_of

IN_FLIGHT = 64  # attempts at a time, unless config.rollout.in_flight says otherwise
OURS = ("expert", "engine", "history")  # what --teacher may be beside an endpoint


@dataclass(frozen=True)
class Options:
    """What a command says beside the configuration; see launch/collect_sft.py.

    `budget_usd` and `prices` are those of a teacher behind an endpoint.
    """

    file: Path
    out: Path
    teacher: str
    split: str = ""
    attempts: int = 1
    keep: int = 1
    bar: Bar = Bar()
    answers: bool = True
    wander: float = 0.0
    budget_usd: float = 0.0
    prices: Prices = Prices()

    def problems(self) -> list[str]:
        """What is wrong with the values, one line each."""
        checks = [
            (self.attempts > 0, f"--attempts={self.attempts} must be positive"),
            (self.keep > 0, f"--keep={self.keep} must be positive"),
            (0 <= self.bar.outcome <= 1, f"--min-outcome={self.bar.outcome} must lie between 0 and 1"),
            (0 <= self.bar.rubric <= 1, f"--min-rubric={self.bar.rubric} must lie between 0 and 1"),
            (0 <= self.wander <= 1, f"--wander={self.wander} must lie between 0 and 1"),
            (self.budget_usd >= 0, f"--budget-usd={self.budget_usd} must not be negative"),
            (
                not self.budget_usd or self.prices.prompt or self.prices.completion,
                "--budget-usd needs --prices: without them nothing costs anything",
            ),
            (
                self.teacher not in ("expert", "history") or self.attempts == 1,
                f"--attempts={self.attempts}: every attempt of {self.teacher} is the same",
            ),
            (
                self.answers or not self.bar.outcome,
                "--without-answers needs --min-outcome=0: there is no outcome without a gold answer",
            ),
        ]
        return [says for holds, says in checks if not holds]


def load_tokenizer(config: ConfigDict) -> Tokenizer:
    """The tokenizer of the policy that is to learn.  Raises InputError when the configuration names none."""
    folder = config.model.policy or config.model.tokenizer
    if not folder:
        raise InputError("give config.model.policy or config.model.tokenizer: traces are tokens of that policy")
    return Tokenizer.load(folder)


def make_rollouts(config: ConfigDict) -> Rollouts:
    """Episodes with the tools and limits of the configuration, and nobody who samples yet."""
    agent = config.agent
    return Rollouts(
        None,
        Chat(load_tokenizer(config)),
        load_tools(config),
        make_budgets(config),
        config.rollout.temperature,
        agent.strict,
        agent.forgive,
    )


# ------------------------------------------------------------------------------------------------ the questions


@dataclass(frozen=True)
class Asked:
    """The questions, and the turns of those that come with a conversation, by their ids."""

    questions: tuple[Question, ...]
    turns: Mapping[str, tuple[Turn, ...]] = field(default_factory=dict)


def load_questions(given: Options, config: ConfigDict) -> Asked:
    """What is asked, or was.  Raises InputError for what cannot be read, and for conversations with one id."""
    if given.teacher == "history":
        pairs = [from_conversation(history) for history in read_histories(given.file)]
        turns = {question.id: turns for question, turns in pairs}
        if len(turns) < len(pairs):
            raise InputError(f"{given.file}: two conversations have the same id")
        return Asked(tuple(question for question, _ in pairs), turns)
    if given.file == Path("world"):
        if config.data.source != "world":
            raise InputError("the questions of the world need its pages: config.data.source=world")
        world = build_world(WorldConfig(**config.world.to_dict()))
        return Asked(tuple(world.questions(given.split or "sft", config.data.train_questions)))
    questions = read_questions(given.file, given.split or None, answers=given.answers)
    return Asked(tuple(questions))


def from_conversation(history: History) -> tuple[Question, tuple[Turn, ...]]:
    """The question of a conversation, which has no rubrics, and its turns with what the tools showed."""
    names = {"E0": (history.answer,)} if history.answer else {}
    question = Question(history.id, history.question, history.answer, entities=names, source="history")
    rows: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in history.messages:
        if message.role == "tool":
            rows.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": message.content})
            continue
        ids = [f"{len(rows)}/{i}" for i in range(len(message.tool_calls))]
        calls = [
            {"tool_call_id": id, "name": call.name, "arguments": call.arguments}
            for id, call in zip(ids, message.tool_calls, strict=True)
        ]
        rows.append({**dataclasses.asdict(message), "tool_calls": calls})
        waiting = ids
    return question, read_messages(rows)


# ---------------------------------------------------------------------------------------------- the collection


def missing(given: Options, config: ConfigDict) -> list[str]:
    """Everything that is missing to start, one line each."""
    found = given.problems()
    if given.teacher not in OURS:
        found += endpoint_problems("--teacher", [given.teacher])
        if len(given.teacher.split()) != 3:
            found.append('--teacher must be expert, engine, history, or "URL KEYS NAME" with the model\'s name')
    if not given.answers and config.judge.kind != "llm":
        found.append(
            "--without-answers needs config.judge.kind=llm: the exact judge compares with gold answers"
        )
    if given.teacher == "engine" and not config.model.policy:
        found.append("--teacher=engine needs config.model.policy")
    return found + [p.replace("--workdir=", "--out=") for p in preflight(config, given.out)]


def without_servers(config: ConfigDict, given: Options) -> ConfigDict:
    """The configuration without servers of ours, unless they teach."""
    config = config.copy_and_resolve_references()
    if given.teacher != "engine":
        config.rollout.engine, config.rollout.servers = "embedded", ()
    return config


async def run_collection(
    given: Options,
    config: ConfigDict,
    command: str,
    begin: Callable[[int], Any] = lambda count: None,
    progress: Callable[[Attempt], Any] = lambda attempt: None,
) -> dict[str, float]:
    """Plays, grades, keeps and freezes; returns the statistics.  `begin` is told how many attempts there are.

    Raises InputError when anything is unknown in the end: the same command asks again.  What teacher or judge
    raise when they cannot go on is raised (CannotGoOn, EngineError).
    """
    config = without_servers(config, given)
    if problems := missing(given, config):
        raise InputError("cannot start: " + "; ".join(problems))
    asked, rollouts = load_questions(given, config), make_rollouts(config)
    questions = asked.questions if given.answers else tuple(map(without_answer, asked.questions))
    how = _how(given, config, dataclasses.replace(asked, questions=questions), rollouts)
    claim(given.out, {"config": flatten(config), "collecting": how})
    check_frozen(traces_of(given.out))
    begin(len(questions) * given.attempts)
    async with (
        make_judge(config, given.out) as judge,
        ready(rollouts.tools, given.out),
        teaching(given, config, rollouts, asked.turns) as play,
    ):
        grade = by_rewards(judge, given.bar, config.reward.mix, config.reward.citations)
        attempts = await collect(
            questions,
            given.out,
            play,
            grade,
            attempts=given.attempts,
            in_flight=config.rollout.in_flight or IN_FLIGHT,
            progress=progress,
        )
    if unknown := [a for a in attempts.values() if not a.score.known]:
        raise InputError(
            f"{len(unknown):,} of {len(attempts):,} attempts are unknown, as {unknown[0].key[0]} "
            f"({unknown[0].score.reason}); the same command asks again"
        )
    credits = (f"What the assistant says was written by: {how['teacher']}.",)
    card = Card("Traces of search agents", command, config.seed, credits=credits)
    return finish(given.out, questions, attempts, given.bar, given.keep, card, how)


def without_answer(question: Question) -> Question:
    """The question as one has it who does not know the answer: no gold answer, no gold names."""
    return dataclasses.replace(question, answer="", answer_aliases=(), entities={})


def _how(given: Options, config: ConfigDict, asked: Asked, rollouts: Rollouts) -> dict[str, Any]:
    """What decides the traces beside the configuration."""
    facts = {
        "teacher": given.teacher.split()[-1],  # a model keeps its name when it moves house
        "attempts": given.attempts,
        "keep": given.keep,
        "min_outcome": given.bar.outcome,
        "min_rubric": given.bar.rubric,
        "without_answers": not given.answers,
        "wander": given.wander,
        "questions_sha256": hashlib.sha256(json.dumps(to_json(asked)).encode()).hexdigest(),
        "tokenizer_sha256": rollouts.chat.tokenizer.content_hash(),
    }
    if given.teacher == "engine":
        from carr_jax.policy import weights_sha256

        facts["weights_sha256"] = weights_sha256(Path(config.model.policy))
    return facts


# ------------------------------------------------------------------------------------------------- the teacher


@asynccontextmanager
async def teaching(
    given: Options, config: ConfigDict, rollouts: Rollouts, turns: Mapping[str, Sequence[Turn]]
) -> AsyncIterator[Teacher]:
    """The teacher that is named; his connections end with the block, replies and bills lie in the folder."""
    match given.teacher:
        case "expert":
            yield by_expert(rollouts, given.wander)
        case "history":
            yield by_history(rollouts, turns)
        case "engine":
            from carr_jax.actor import fixed_engine  # for nobody else is jax loaded, and a device taken

            async with fixed_engine(config) as engine:
                yield by_engine(dataclasses.replace(rollouts, engine=engine), config.seed)
        case _:
            async with _endpoint(given, config) as (client, cache):
                yield by_chat(rollouts, config.seed, client, cache)


@asynccontextmanager
async def _endpoint(given: Options, config: ConfigDict) -> AsyncIterator[tuple[ChatClient, ReplyCache]]:
    """A model behind "URL KEYS NAME"; as patient as the judge of the configuration."""
    endpoint, judge = parse_endpoint(given.teacher), config.judge
    ledger = Ledger(given.out / "teacher" / "ledger.jsonl", given.prices, given.budget_usd)
    cache = ReplyCache(given.out / "teacher" / "replies.sqlite")
    limits = Patience(judge.concurrency, judge.key_concurrency, judge.request_s, judge.queue_s)
    try:
        async with ChatClient(endpoint.model, (endpoint,), os.environ, ledger, limits) as client:
            yield client, cache
    finally:
        cache.close()
        ledger.close()
