"""What the agent is to do: questions to learn from, held-out questions, and the pages it may search."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ml_collections import ConfigDict

from carr_jax.agent.episode import Budgets
from carr_jax.agent.tools import Tools
from carr_jax.calls.patience import Patience
from carr_jax.data.files import shown
from carr_jax.data.sources import read_pages, read_questions
from carr_jax.records import InputError, Page, Question
from carr_jax.search.browser import Limits
from carr_jax.search.cache import Lifetimes
from carr_jax.search.client import RemoteTools
from carr_jax.search.corpus import Corpus
from carr_jax.search.fetch import FetchOptions
from carr_jax.search.hygiene import HygieneRules
from carr_jax.search.index import Index
from carr_jax.search.providers import ADDRESSES
from carr_jax.search.reader import JINA
from carr_jax.search.retrieval import Retrieval
from carr_jax.search.safety import Rules
from carr_jax.search.service import Address
from carr_jax.search.web import WebOptions, WebTools
from carr_jax.search.world import WorldConfig, build_world

HELD_OUT = ("dev", "held_out")  # splits that are never trained on


@dataclass(frozen=True)
class Task:
    """`questions` in file order; see `question_order` for the order of training."""

    questions: tuple[Question, ...]
    held_out: tuple[Question, ...]
    pages: tuple[Page, ...]
    tools: Tools
    budgets: Budgets


def load_task(config: ConfigDict, split: str) -> Task:
    """Reads or generates everything that `config.data` names.  `split` is "train" or "sft".

    Raises InputError naming file, line and reason for rows that cannot be used.
    """
    if config.data.source == "world":
        pages, questions, held_out = _from_world(config, split)
    else:
        pages = _pages(config)
        questions, held_out = _chosen(config, _stored_questions(config), split)
    return Task(tuple(questions), tuple(held_out), pages, make_tools(config, pages), make_budgets(config))


def make_budgets(config: ConfigDict) -> Budgets:
    """The limits of one episode."""
    agent = config.agent
    return Budgets(agent.context, agent.turns, agent.tool_calls, agent.turn_tokens, agent.deadline_s)


def make_tools(config: ConfigDict, pages: tuple[Page, ...]) -> Tools:
    """What `config.search` lets the agent reach."""
    search, server = config.search, config.search.server
    shown = dict(
        snippet_chars=search.snippet_chars,
        limits=Limits(**{f.name: search[f.name] for f in dataclasses.fields(Limits)}),
    )
    patience = dict(request_s=server.request_s, attempts=server.attempts)
    match search.source:
        case "web":
            return WebTools(web_options(config), os.environ, shown["limits"])
        case "corpus" if search.index.path:
            return Index(search.index.path, dense_model=search.index.dense_model, **shown)
        case "corpus":
            return Corpus(pages, **shown)
        case "server":
            return RemoteTools(server.url, os.environ.get(server.token, ""), **patience)
        case "retrieval":
            return Retrieval(server.url, **shown, **patience)
    raise InputError(f"config.search.source={search.source!r} is unknown")


def web_options(config: ConfigDict) -> WebOptions:
    """What `config.search.web` and `config.search.cache` say."""
    web, cache = config.search.web, config.search.cache
    patience = Patience(
        concurrency=web.concurrency, request_s=web.request_s, attempts=web.attempts, outage_s=web.outage_s
    )
    searching = Address(web.search_url or ADDRESSES[web.provider], _names(web.search_keys), web.search_usd)
    reading = Address(web.reader_url or JINA, _names(web.reader_keys), web.page_usd)
    day = 86_400.0
    return WebOptions(
        web.provider,
        searching,
        reading if web.reader == "jina" else None,
        dataclasses.replace(patience, rate=web.search_rate),
        dataclasses.replace(patience, rate=web.read_rate),
        FetchOptions(
            page_s=web.request_s,
            page_bytes=web.page_bytes,
            concurrency=web.concurrency,
            user_agent=web.user_agent,
            robots=web.robots,
            outage_s=web.outage_s,
        ),
        Rules(frozenset(web.ports), frozenset(web.private_hosts)),
        hygiene=HygieneRules(web.retold_share, tuple(web.withheld_hosts)),
        budget_usd=web.budget_usd,
        cache=cache.path,
        mode=cache.mode,
        lifetimes=Lifetimes(cache.search_days * day, cache.page_days * day, cache.missing_hours * 3_600.0),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


@contextlib.asynccontextmanager
async def ready(tools: Tools, folder: Path) -> AsyncIterator[None]:
    """Tools on the web have connections and files, which are open inside; all others are ready as they are."""
    if isinstance(tools, WebTools):
        async with tools.opened(folder):
            yield
    else:
        yield


def served_tools(config: ConfigDict) -> Tools:
    """What a tool server offers.  Raises InputError for a configuration that asks a tool server itself."""
    if config.search.source == "server":
        raise InputError("config.search.source=server: give this server what it is to search itself")
    return load_tools(config)


def load_tools(config: ConfigDict) -> Tools:
    """What `config.search` lets an agent reach, without any questions."""
    if config.search.source != "corpus" or config.search.index.path:
        return make_tools(config, ())
    if config.data.source == "world":
        return make_tools(config, build_world(WorldConfig(**config.world.to_dict())).pages)
    return make_tools(config, tuple(read_pages(_folder(config))))


def _from_world(config: ConfigDict, split: str) -> tuple[tuple[Page, ...], list[Question], list[Question]]:
    world = build_world(WorldConfig(**config.world.to_dict()))
    count = config.data.train_questions
    held_out = world.questions("held_out", config.data.held_out_questions, seed=0)
    return world.pages, world.questions(split, count, seed=0), held_out


def _stored_questions(config: ConfigDict) -> list[Question]:
    data = config.data
    if data.source == "files":
        return read_questions(data.path, on_bad=_tell if data.skip_bad_rows else None)
    return _datasets().read_question_dataset(data.path, data.name)


def _folder(config: ConfigDict) -> Path:
    """Where the pages stand that go with the questions."""
    data = config.data
    return Path(data.path) if data.source == "files" else _datasets().dataset_folder(data.path, data.name)


def _datasets() -> ModuleType:
    """The reader of datasets.  Raises InputError when what it needs is not installed."""
    try:
        from carr_jax.data.tfds_builders import reading
    except ImportError as error:
        raise InputError(f"config.data.source=tfds: {error}; pip install 'carr_jax[data]'") from None
    return reading


def _tell(bad: Sequence[str]) -> None:
    print(f"{len(bad)} bad rows are left out\n{shown(bad)}")


def _pages(config: ConfigDict) -> tuple[Page, ...]:
    """The pages beside the questions, () when something else is searched."""
    elsewhere = config.search.source != "corpus" or config.search.index.path
    return () if elsewhere else tuple(read_pages(_folder(config)))


def _chosen(config: ConfigDict, rows: Sequence[Question], split: str) -> tuple[list[Question], list[Question]]:
    """Those that have rubrics: of `split` (where there are none, of "train"), and the held-out ones."""
    rows = [q for q in rows if q.rubrics]
    names = {q.split for q in rows}
    train = [q for q in rows if q.split == (split if split in names else "train")]
    held_out = [q for q in rows if q.split in HELD_OUT]
    if not train:
        raise InputError(f"{config.data.path}: no question of the split train has rubrics")
    count = config.data.train_questions or len(train)
    return _spread(train, count), _spread(held_out, config.data.held_out_questions)


def _spread(questions: list[Question], count: int) -> list[Question]:
    """`count` questions evenly spaced over the list, so that every source file is represented."""
    count = min(count, len(questions))
    return [questions[i * len(questions) // count] for i in range(count)]


def question_order(seed: int, position: int, count: int) -> int:
    """Index of the question at `position` of the endless, per-epoch shuffled training stream.

    A pure function, so that the data position in a checkpoint is one integer.
    """
    epoch, offset = divmod(position, count)
    return epoch_order(seed, epoch, count)[offset]


@functools.lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, count: int) -> Sequence[int]:
    """The order of an epoch over `count` things; kept, for every position of it is asked for."""
    return random.Random(f"{seed}/{epoch}").sample(range(count), count)
