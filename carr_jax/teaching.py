"""Who teaches, as a command names it: the scripted expert, a policy of ours, a chat endpoint, old histories."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from carr_jax.actor import embedded_engine, patience
from carr_jax.agent.chat import Chat
from carr_jax.agent.tokenizer import Tokenizer
from carr_jax.collecting import Teacher, by_chat, by_engine, by_expert, by_history
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.endpoints import parse_endpoint
from carr_jax.llm.lanes import ChatOptions
from carr_jax.llm.ledger import Ledger, Prices
from carr_jax.policy import load_policy
from carr_jax.records import InputError, Turn
from carr_jax.rollout.engine import Engine
from carr_jax.rollout.pool import SGLangPool
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.task import load_tools, make_budgets

OURS = ("expert", "engine", "history")  # what --teacher may be beside an endpoint


@dataclass(frozen=True)
class Spending:
    """What a paid teacher may cost in US dollars, 0 for no limit, and what a million tokens of his cost."""

    budget_usd: float = 0.0
    prices: Prices = Prices()


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


@asynccontextmanager
async def teaching(
    name: str,
    config: ConfigDict,
    rollouts: Rollouts,
    folder: Path,
    spending: Spending,
    histories: Mapping[str, Sequence[Turn]],
    wander: float,
) -> AsyncIterator[Teacher]:
    """The teacher of that name; his connections end with the block, his replies and bills lie in `folder`."""
    match name:
        case "expert":
            yield by_expert(rollouts, wander)
        case "history":
            yield by_history(rollouts, histories)
        case "engine":
            async with _engine(config) as engine:
                yield by_engine(dataclasses.replace(rollouts, engine=engine), config.seed)
        case _:
            async with _endpoint(name, config, folder, spending) as (client, cache):
                yield by_chat(rollouts, config.seed, client, cache)


@asynccontextmanager
async def _engine(config: ConfigDict) -> AsyncIterator[Engine]:
    """Our engine with the weights of config.model.policy."""
    if config.rollout.engine == "embedded":
        policy = load_policy(config, [])
        yield embedded_engine(config, policy, policy.params, 0)
        return
    weights = Path(config.model.policy).absolute()
    async with SGLangPool(config.rollout.servers, weights, 0, patience(config)) as pool:
        yield pool


@asynccontextmanager
async def _endpoint(
    text: str, config: ConfigDict, folder: Path, spending: Spending
) -> AsyncIterator[tuple[ChatClient, ReplyCache]]:
    """A model behind "URL KEYS NAME"; as patient as the judge of the configuration."""
    endpoint, judge = parse_endpoint(text), config.judge
    ledger = Ledger(folder / "teacher" / "ledger.jsonl", spending.prices, spending.budget_usd)
    cache = ReplyCache(folder / "teacher" / "replies.sqlite")
    limits = ChatOptions(judge.concurrency, judge.key_concurrency, judge.request_s, judge.queue_s)
    try:
        async with ChatClient(endpoint.model, (endpoint,), os.environ, ledger, limits) as client:
            yield client, cache
    finally:
        cache.close()
