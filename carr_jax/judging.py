"""The judge of a run: who it is, where it is asked, what it may cost, and how to go on when it cannot."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ml_collections import ConfigDict

from carr_jax import command
from carr_jax.config import problems, rl
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import parse_endpoint
from carr_jax.llm.errors import BudgetSpent, CannotGoOn, NotRecorded, NotWritten
from carr_jax.llm.lanes import ChatOptions
from carr_jax.llm.ledger import Ledger, Prices
from carr_jax.preflight import judge_problems, replies_file
from carr_jax.records import InputError
from carr_jax.rewards.judge import ExactJudge, Judge
from carr_jax.rewards.llm_judge import JudgeOptions, LLMJudge


def judge_name(config: ConfigDict) -> str:
    """What to call the judge where its verdicts are shown or kept."""
    return config.judge.kind if config.judge.kind == "exact" else config.judge.model


def chosen_config(argv: Sequence[str]) -> ConfigDict:
    """The configuration of a command of `launch/`: --config=FILE with what --config.section.field changes.

    Without one, the defaults, whose judge is the exact one.  Raises InputError.
    """
    ours = [a for a in argv[1:] if a.startswith("--config")]
    config = command.parse([argv[0], *ours])[0] if ours else rl()
    if "judge" not in config:
        raise InputError("this configuration has no section judge; give one for reinforcement learning")
    return config


def chosen_judge(argv: Sequence[str], folder: Path) -> ConfigDict:
    """`chosen_config` with a judge that can be asked.  Raises InputError for all that it lacks at once."""
    config = chosen_config(argv)
    wrong = [p for p in problems(config) if p.startswith("config.judge.")]
    if wrong := wrong or judge_problems(config, folder):
        raise InputError("cannot start: " + "; ".join(wrong))
    return config


def ledger_file(folder: Path) -> Path:
    """The account book of a run: what was paid in this folder, whatever cache it used."""
    return folder / "judge" / "ledger.jsonl"


@asynccontextmanager
async def make_judge(config: ConfigDict, folder: Path, draw: int = 0) -> AsyncIterator[Judge]:
    """The judge that `config.judge` describes; its files lie in `folder`, its connections end with the block.

    Another `draw` asks for other replies to the same prompts.  Raises InputError for endpoints, a cache or an
    account book that cannot be used.
    """
    if config.judge.kind == "exact":
        yield ExactJudge()
        return
    judge = config.judge
    options = JudgeOptions(
        judge.temperature,
        judge.max_tokens,
        judge.tries,
        judge.votes,
        judge.page_bytes,
        judge.pages_bytes,
        draw,
    )
    async with open_client(config, folder) as (client, cache):
        yield LLMJudge(client, cache, options)


@asynccontextmanager
async def open_client(config: ConfigDict, folder: Path) -> AsyncIterator[tuple[ChatClient, ReplyCache]]:
    """The model that `config.judge` names, and the replies that are known.

    Raises InputError as `make_judge` does.
    """
    judge = config.judge
    prices = Prices(judge.price_prompt, judge.price_cached, judge.price_completion)
    ledger = Ledger(ledger_file(folder), prices, judge.budget_usd)
    cache = ReplyCache(replies_file(config, folder), judge.replay)
    limits = ChatOptions(judge.concurrency, judge.key_concurrency, judge.request_s, judge.queue_s)
    endpoints = tuple(map(parse_endpoint, judge.endpoints))
    try:
        async with ChatClient(judge.model, endpoints, os.environ, ledger, limits) as client:
            yield client, cache
    finally:
        cache.close()


def how_to_go_on(
    error: CannotGoOn, budget: str = "config.judge.budget_usd", keys: str = "config.judge.endpoints"
) -> str:
    """What a person can do, in one line; what was done is saved by then.

    `budget` and `keys` are the options that the budget and the names of the keys come from.
    """
    if isinstance(error, BudgetSpent):
        remedy = f"give a larger {budget}"
    elif isinstance(error, NotRecorded):
        remedy = "give config.judge.replay=False to ask for it"
    elif isinstance(error, NotWritten):
        remedy = "see to that disk"
    else:
        remedy = f"see to the keys that {keys} names"
    return f"{error}; {remedy}, and the same command goes on from here"
