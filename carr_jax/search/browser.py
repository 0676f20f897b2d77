"""The three browser tools of one episode, over whatever has pages: search, open, find.

A `Source` is shared by all episodes, a `Session` belongs to one.  The texts follow the tool server of the
reference (numbering from 0, `[i] Title: ...`, `Markdown Content:`, `[Match k]`).  Its faults are left out: an
error never becomes the current page, find without a page says so, ids may be written as strings, and
lower-casing never shifts an offset.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from carr_jax.addresses import asked_keys, canonical_url
from carr_jax.records import UNAVAILABLE, Page, Seen, ToolCall, ToolResult

EMPTY_QUERY = "No query was given. Please give a non-empty search query."
NO_RESULTS = "No results found."
EMPTY_PATTERN = "No pattern was given. Please give a non-empty pattern."
NO_PAGE = "No page is open. Please open a page before searching in it."
NO_ADDRESS = "There is no page at this address."
NO_MATCHES = "No matches found."

_LOOSE_APART = 200
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Hit:
    """One search result: address and title of a page, what is shown of it, and its date where known."""

    url: str
    title: str
    snippet: str
    date: str = ""


class Missing(Exception):
    """An honest answer: there is no such page, or none that may be shown.  `sentence` is for the policy.

    `reason` is a short stable code such as "binary", "private" or "http_404", which is counted.
    """

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(f"{reason}: {sentence}")
        self.sentence, self.reason = sentence, reason


class Outage(Exception):
    """Our side failed: a provider is down, a key is refused, a budget is spent.  The policy learns no more.

    `reason` is a short stable code such as "timeout", which is counted.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Source(Protocol):
    """Where sessions search and read.  Both methods raise Missing and Outage, and nothing else."""

    async def search(self, query: str, num: int) -> Sequence[Hit]: ...

    async def page(self, url: str) -> Page:
        """The whole page at an address, whatever its spelling; `url` is the address that answered."""
        ...


@dataclass(frozen=True)
class Limits:
    """What a session shows at most, in results and characters; the defaults are the reference's.

    Raises ValueError for a limit below 1.
    """

    max_results: int = 100
    page_chars: int = 10_000  # of a page that is opened
    find_radius: int = 200  # on each side of a find hit
    find_limit: int = 20

    def __post_init__(self) -> None:
        if min(self.max_results, self.page_chars, self.find_radius, self.find_limit) < 1:
            raise ValueError("all limits must be at least 1")


@dataclass(frozen=True)
class _Opened:
    """The address that was asked for and its page; after a restore None until `find` needs it."""

    asked: str
    page: Page | None


class Session:
    """The browser of one episode: the addresses of the latest results, and the page opened last."""

    def __init__(self, source: Source, limits: Limits = Limits()) -> None:
        self._source, self._limits = source, limits
        self._results: tuple[str, ...] = ()
        self._opened: _Opened | None = None

    async def search(self, query: str, num: int = 10) -> ToolResult:
        """The best `num` pages as numbered blocks.  bad_call for an empty query or a `num` that is no count."""
        count = _as_int(num)
        if not isinstance(query, str) or not query.strip():
            return ToolResult(EMPTY_QUERY, error="bad_call")
        if count is None or count < 1:
            return ToolResult("num must be a positive integer.", error="bad_call")
        try:
            hits = await self._source.search(query, min(count, self._limits.max_results))
        except (Missing, Outage) as failure:
            return failed(failure)
        self._results = tuple(hit.url for hit in hits)
        if not hits:
            return ToolResult(NO_RESULTS, error="not_found")
        seen = tuple(Seen(hit.url, hit.title, "snippet", hit.snippet) for hit in hits)
        return ToolResult("\n\n".join(map(_block, range(len(hits)), hits)).strip(), seen)

    async def open(self, id_or_url: int | str) -> ToolResult:
        """The start of the page with that number in the latest search, or at that address.

        The whole page stays open for `find`.  What cannot be opened leaves the page before it open.
        """
        number = _as_int(id_or_url)
        if number is not None:
            if not 0 <= number < len(self._results):
                return ToolResult("There is no such id in the latest search results.", error="not_found")
            asked = self._results[number]
        elif isinstance(id_or_url, str) and id_or_url.strip():
            asked = id_or_url
        else:
            return ToolResult("Please give the id of a search result or a URL.", error="bad_call")
        try:
            page = await self._source.page(asked)
        except (Missing, Outage) as failure:
            return failed(failure)
        self._opened = _Opened(asked, page)
        header, output = _header(page), page_text(page)[: self._limits.page_chars]
        return ToolResult(output, (_seen(self._opened, "page", output[len(header) :]),))

    async def find(self, pattern: str) -> ToolResult:
        """Where `pattern` stands on the open page, each place with its surroundings."""
        if not isinstance(pattern, str) or not pattern.strip():
            return ToolResult(EMPTY_PATTERN, error="bad_call")
        if self._opened is None:
            return ToolResult(NO_PAGE, error="bad_call")
        if self._opened.page is None:
            try:
                self._opened = _Opened(self._opened.asked, await self._source.page(self._opened.asked))
            except (Missing, Outage) as failure:
                return failed(failure)
        text, radius = page_text(self._opened.page), self._limits.find_radius
        spans = find_spans(text, pattern, self._limits.find_limit)
        if not spans:
            return ToolResult(NO_MATCHES, error="not_found")
        contexts = [text[max(0, start - radius) : end + radius].strip() for start, end in spans]
        output = "\n\n".join(f"[Match {k}]\n{context}" for k, context in enumerate(contexts, 1))
        return ToolResult(output, tuple(_seen(self._opened, "match", c) for c in dict.fromkeys(contexts)))

    def restore(self, calls: Sequence[ToolCall]) -> None:
        """Be where these calls of an interrupted episode left a session, by what they showed; asks nobody."""
        for result in (call.result for call in calls if call.result):
            kind = result.seen[0].kind if result.seen else None
            if kind == "snippet" or result.output == NO_RESULTS:
                self._results = tuple(s.url for s in result.seen)
            elif kind == "page":
                self._opened = _Opened(result.seen[0].asked or result.seen[0].url, None)


def failed(failure: Missing | Outage) -> ToolResult:
    """What a call of a tool shows that a source could not answer."""
    if isinstance(failure, Missing):
        return ToolResult(failure.sentence, error="not_found", reason=failure.reason)
    return ToolResult(UNAVAILABLE, error="unavailable", reason=failure.reason)


# ------------------------------------------------------------------------------------------------ how it looks


def page_text(page: Page) -> str:
    """The whole page as `open` lays it out and `find` searches it."""
    return _header(page) + page.text


def _header(page: Page) -> str:
    published = f"Published Time: {_one_line(page.published)}\n\n" if page.published else ""
    return f"Title: {_one_line(page.title)}\n\nURL Source: {page.url}\n\n{published}Markdown Content:\n"


def _block(i: int, hit: Hit) -> str:
    """One line each, so that a page cannot forge another result."""
    title, snippet = _one_line(hit.title), _one_line(hit.snippet)
    date = f"\n[{i}] Date: {_one_line(hit.date)}" if hit.date else ""
    return f"[{i}] Title: {title}\n[{i}] URL Source: {hit.url}\n[{i}] Description: {snippet}{date}"


def _seen(opened: _Opened, kind: str, text: str) -> Seen:
    """Keeps the address that was asked for where another answered."""
    page = opened.page
    redirected = canonical_url(page.url) not in asked_keys(opened.asked)
    return Seen(page.url, page.title, kind, text, opened.asked if redirected else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())


# ---------------------------------------------------------------------------------------------------- patterns


def lower_in_place(text: str) -> str:
    """Lower case, leaving alone the few characters whose lower case has another length, so offsets hold."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := c.lower()) == 1 else c for c in text)


def find_spans(text: str, pattern: str, limit: int) -> list[tuple[int, int]]:
    """Up to `limit` spans of `pattern` in `text`, sorted: case-blind hits (may overlap) and loose ones.

    A loose hit is a window of len(pattern) + 10 characters, tried every len(pattern) + 5, that holds at least
    80 % of the pattern's words (as a multiset) and starts at least 200 characters from every hit so far.
    """
    text, pattern = lower_in_place(text), lower_in_place(pattern)
    spans: list[tuple[int, int]] = []
    start = text.find(pattern)
    while start >= 0 and len(spans) < limit:
        spans.append((start, start + len(pattern)))
        start = text.find(pattern, start + 1)
    words = Counter(_WORD.findall(pattern))
    if len(spans) < limit and len(pattern) >= 3 and words:
        size = len(pattern) + 10
        for start in range(0, len(text), len(pattern) + 5):
            found = words & Counter(_WORD.findall(text[start : start + size]))
            if found.total() < 0.8 * words.total() or any(abs(start - s) < _LOOSE_APART for s, _ in spans):
                continue
            spans.append((start, min(start + size, len(text))))
            if len(spans) == limit:
                break
    return sorted(spans)


def _as_int(value: Any) -> int | None:
    """3, 3.0, "3" and " 3 " as 3; anything else, bool included, as None."""
    if isinstance(value, str):
        value = value.strip()
        # The length bound keeps clear of Python's limit on digits.
        return int(value) if re.fullmatch(r"-?[0-9]{1,9}", value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None
