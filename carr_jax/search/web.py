"""The open web as a source of sessions: a search engine, a reader, and what is remembered of both.

Between a session and the web stand, from the outside in: what is withheld (by question, so never remembered),
the cache, one call in the air for all who ask the same, and the limits of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from carr_jax.addresses import asked_address
from carr_jax.calls.errors import BudgetSpent, NoKeyLeft
from carr_jax.calls.flights import Flights
from carr_jax.calls.http import open_http
from carr_jax.calls.ledger import Ledger, Prices
from carr_jax.calls.patience import Patience
from carr_jax.records import Page
from carr_jax.search.browser import Hit, Limits, Missing, Outage, Session
from carr_jax.search.cache import AnswerCache, Lifetimes
from carr_jax.search.fetch import Fetcher, FetchOptions
from carr_jax.search.hygiene import HygieneRules, withheld
from carr_jax.search.providers import Searcher
from carr_jax.search.reader import OwnReader, Reader
from carr_jax.search.safety import Lookup, Rules, system_lookup
from carr_jax.search.said import missing
from carr_jax.search.service import Address, Service
from carr_jax.search.workers import Workers

_FORMAT = 2  # of what is remembered
_COUNTED = ("asked", "cached", "results_withheld", "pages_withheld")
_LONG = 50_000  # characters that are looked through in a thread, not between two callbacks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WebOptions:
    """Who is asked, how fast, and what is remembered and withheld.  See `search.web` of the configuration."""

    provider: str  # a key of providers.ADDRESSES
    searching: Address
    reading: Address | None  # a reader service, or None to fetch and read pages here
    search_patience: Patience = Patience()
    read_patience: Patience = Patience()
    fetching: FetchOptions = FetchOptions()
    rules: Rules = Rules()
    workers: int = 2
    extract_s: float = 20.0
    hygiene: HygieneRules = HygieneRules()
    budget_usd: float = 0.0
    cache: str = ""  # a file, "" for one in the folder of the run
    mode: str = "use"  # one of cache.MODES
    lifetimes: Lifetimes = Lifetimes()


class PageReader(Protocol):
    """Where pages come from."""

    async def page(self, url: str) -> Page: ...


def cache_file(path: str, folder: Path) -> Path:
    """The cache of the web's answers: a file of its own, or in the run's folder."""
    return Path(path or folder / "tools" / "answers.sqlite")


class WebTools:
    """Sessions on the open web; ready inside `opened`.  `environment` holds the keys."""

    def __init__(
        self,
        options: WebOptions,
        environment: Mapping[str, str],
        limits: Limits = Limits(),
        lookup: Lookup = system_lookup,
    ) -> None:
        self._options, self._environment, self._limits, self._lookup = options, environment, limits, lookup
        self._counts: Counter[str] = Counter()
        self._ledger: Ledger | None = None
        self._told: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[WebTools]:
        """Connections, cache and account book are open; files lie in `folder`.  Raises InputError."""
        options = self._options
        async with contextlib.AsyncExitStack() as stack:
            self._cache = AnswerCache(cache_file(options.cache, folder), options.mode, options.lifetimes)
            stack.callback(self._cache.close)
            self._ledger = Ledger(folder / "tools" / "ledger.jsonl", Prices(), options.budget_usd)
            stack.callback(self._ledger.close)
            self._told = self.totals()
            self._flights: Flights[tuple[str, Any]] = Flights(lands=True)  # what was paid is kept
            if options.mode != "replay":
                await self._connect(stack)
            stack.push_async_callback(self._flights.close)
            yield self

    async def _connect(self, stack: contextlib.AsyncExitStack) -> None:
        options = self._options
        http = await stack.enter_async_context(open_http())

        def service(name: str, address: Address, patience: Patience) -> Service:
            return Service(name, address, self._environment, http, self._ledger, patience)

        self._searcher = Searcher(
            service(options.provider, options.searching, options.search_patience), options.provider
        )
        self._reader: PageReader
        if options.reading is not None:
            self._reader = Reader(service("reader", options.reading, options.read_patience), options.rules)
        else:
            fetcher = Fetcher(options.fetching, options.rules, self._lookup)
            workers = stack.enter_context(Workers(options.workers, options.extract_s))
            self._reader = OwnReader(await stack.enter_async_context(fetcher), workers)

    def session(self, question: str) -> Session:
        """A fresh browser for one episode, which is not shown what gives `question` away."""
        return Session(_Guarded(self, question), self._limits)

    def news(self) -> dict[str, float]:
        """The `tools/*` values since the last call: calls, answers of the cache, what was withheld, cost."""
        totals = self.totals()
        before, self._told = self._told, totals
        return {f"tools/{name}": value - before.get(name, 0.0) for name, value in totals.items()}

    def totals(self) -> dict[str, float]:
        """The same since `opened`; the cost with what the account book held then."""
        counts = {name: float(self._counts[name]) for name in _COUNTED}
        return counts | {"cost_usd": self._ledger.spent_usd if self._ledger else 0.0}

    def count(self, name: str) -> None:
        """One more of what `news` tells."""
        self._counts[name] += 1

    # ---------------------------------------------------------------------------------- what is behind sessions

    async def search(self, query: str, num: int) -> list[Hit]:
        """As `browser.Source`, for all questions alike."""
        query = " ".join(query.split())

        async def ask() -> tuple[str, Any]:
            return "search", [
                (h.url, h.title, h.snippet, h.date) for h in await self._searcher.search(query, num)
            ]

        parts = ["search", self._options.provider, query, num]
        return [Hit(*row) for row in await self._answer(f"search {query!r}", parts, ask)]

    async def page(self, url: str) -> Page:
        """As `browser.Source`, for all questions alike."""
        url = asked_address(url)
        by = "own" if self._options.reading is None else "reader"  # at whatever address

        async def ask() -> tuple[str, Any]:
            page = await self._reader.page(url)
            return "page", (page.url, page.title, page.text, page.published)

        return Page(*await self._answer(f"open {url!r}", ["page", by, url.partition("#")[0]], ask))

    async def _answer(
        self, call: str, parts: Sequence[Any], ask: Callable[[], Awaitable[tuple[str, Any]]]
    ) -> Any:
        """What is remembered of a call, else what comes of it.  Raises Missing, Outage, and CannotGoOn."""
        text = json.dumps([_FORMAT, *parts])
        key = hashlib.sha256(text.encode()).hexdigest()
        known = await self._cache.get(key, call)
        if known is not None and not (known[0] == "outage" and self._cache.mode != "replay"):
            self.count("cached")
        else:
            known, _ = await self._flights.join(key, lambda: self._asked(key, ask))
        kind, value = known
        if kind == "missing":
            raise Missing(*value)
        if kind == "outage":
            raise Outage(value)
        return value

    async def _asked(self, key: str, ask: Callable[[], Awaitable[tuple[str, Any]]]) -> tuple[str, Any]:
        """Asks, and remembers what came of it."""
        self.count("asked")
        try:
            known = await ask()
        except Missing as answer:
            known = "missing", (answer.sentence, answer.reason)
        except Outage as outage:
            known = "outage", outage.reason
        except BudgetSpent as error:
            raise BudgetSpent(str(error), "give a larger config.search.web.budget_usd") from error
        except NoKeyLeft as error:
            raise NoKeyLeft(str(error), "see to the keys that config.search.web names") from error
        await self._cache.put(key, known[0], known)
        return known


@dataclass(frozen=True)
class _Guarded:
    """The web as it is shown to who answers `question`."""

    web: WebTools
    question: str

    async def search(self, query: str, num: int) -> list[Hit]:
        hits = await self.web.search(query, num)
        return [hit for hit in hits if not self._holds_back(hit.url, f"{hit.title} {hit.snippet}", "results")]

    async def page(self, url: str) -> Page:
        page = await self.web.page(url)
        text = f"{page.title} {page.text}"
        held_back = self._holds_back(url, "", "pages")
        if not held_back and len(text) < _LONG:
            held_back = self._holds_back(page.url, text, "pages")
        elif not held_back:
            held_back = await asyncio.to_thread(self._holds_back, page.url, text, "pages")
        if held_back:
            raise missing("withheld")
        return page

    def _holds_back(self, url: str, text: str, what: str) -> bool:
        """Counted, and told in the log by address and reason."""
        why = withheld(self.question, url, text, self.web._options.hygiene)
        if why:
            self.web.count(f"{what}_withheld")
            log.info("withheld from the question that begins %r: %s (%s)", self.question[:40], url, why)
        return bool(why)
