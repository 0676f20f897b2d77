"""A fixed set of pages behind the three browser tools: BM25 search, open, find.

`Corpus` is shared by all episodes, `Session` belongs to one.  The texts follow the tool server of the reference
(numbering from 0, `[i] Title: ...`, `Markdown Content:`, `[Match k]`).  Its faults are left out: an error never
becomes the current page, find without a page says so, ids may be written as strings, and lower-casing never
shifts an offset.
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import tantivy

from carr_jax.records import Page, Seen, ToolCall, ToolResult
from carr_jax.search.snippets import Outline, best_stretch, outline

EMPTY_QUERY = "No query was given. Please give a non-empty search query."
NO_RESULTS = "No results found."
EMPTY_PATTERN = "No pattern was given. Please give a non-empty pattern."
NO_PAGE = "No page is open. Please open a page before searching in it."
NO_MATCHES = "No matches found."

_TITLE_WEIGHT = 2.0
_LOOSE_APART = 200
_QUERY_TERMS = 64  # a query is a handful of words; this only bounds what a babbling policy can cost
_WRITER_BYTES = 256_000_000  # large enough that usual corpora become a single segment
_CACHED_WORDS = 1 << 17  # whose index terms are remembered
_CACHED_PAGES = 1 << 11  # whose outline is remembered, about 40 KB each
_WORD = re.compile(r"[a-z0-9]+")


def canonical_url(url: str) -> str:
    """One key for all spellings of an address: no scheme, no fragment, percent-escapes undone, NFC."""
    url = url.strip()
    try:
        parts = urlsplit(url)
    except ValueError:  # such as an unclosed IPv6 bracket: an unknown address like any other
        return url
    query = f"?{parts.query}" if parts.query else ""
    return unicodedata.normalize("NFC", f"{parts.netloc.lower()}{unquote(parts.path)}{query}")


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


@dataclass(frozen=True)
class Hit:
    """One search result: the page, its BM25 score and the part of its text that fits the query best."""

    page: Page
    score: float
    snippet: str


class Corpus:
    """Pages with a BM25 index (k1 1.2, b 0.75, English stemming, accents folded, title counted twice).

    Without `directory` the index lives in memory; with it, on disk.  The limits count characters and results
    and default to the reference's.  Raises ValueError for no pages, for two pages with the same
    address, and for a limit below 1.
    """

    def __init__(
        self,
        pages: Iterable[Page],
        directory: str | Path | None = None,
        *,
        max_results: int = 100,
        page_chars: int = 10_000,
        snippet_chars: int = 300,
        find_radius: int = 200,
        find_limit: int = 20,
    ) -> None:
        if min(max_results, page_chars, snippet_chars, find_radius, find_limit) < 1:
            raise ValueError("all limits of a corpus must be at least 1")
        self.pages = tuple(pages)
        self.max_results, self.page_chars, self.snippet_chars = max_results, page_chars, snippet_chars
        self.find_radius, self.find_limit = find_radius, find_limit
        self._by_url = _unique_by_url(self.pages)
        self._analyzer = _analyzer()
        self._schema = _schema()
        self._index = _build(self.pages, self._schema, self._analyzer, directory)
        self._searcher = self._index.searcher()
        self._word_terms = functools.lru_cache(_CACHED_WORDS)(self.terms)
        self._outline = functools.lru_cache(_CACHED_PAGES)(self._outlined)

    def lookup(self, url: str) -> Page | None:
        """The page at `url`, whatever its percent-encoding, scheme or fragment; None when there is none."""
        return self._by_url.get(canonical_url(url))

    def terms(self, text: str) -> list[str]:
        """Distinct index terms of `text` in order."""
        return list(dict.fromkeys(self._analyzer.analyze(_valid(text))))

    def rank(self, query: str, num: int = 10) -> list[Hit]:
        """The best `num` pages for the words of `query`; equal scores keep the order of the pages.

        The words are never parsed as operators, so any text is a valid query.
        """
        terms = self.terms(query)[:_QUERY_TERMS]
        if not terms or num < 1:
            return []
        scored = self._scored(self._query(terms), num)
        weights = {term: self._rarity(term) for term in terms}
        return [Hit(self.pages[i], score, self.snippet(self.pages[i], weights)) for i, score in scored]

    def snippet(self, page: Page, weights: dict[str, float]) -> str:
        """The stretch of at most `snippet_chars` with the heaviest distinct query terms; on a tie the first.

        What the title says already counts a tenth.
        """
        weights = weights | {term: 0.1 * weights[term] for term in self.terms(page.title) if term in weights}
        return best_stretch(self._outline(page.text), weights)

    def _outlined(self, text: str) -> Outline:
        line = " ".join(text.split())  # one line, so that a page cannot forge another result
        return outline(line, self.snippet_chars, self._word_terms)

    def session(self) -> Session:
        """A fresh browser for one episode."""
        return Session(self)

    def _query(self, terms: Sequence[str]) -> tantivy.Query:
        should = []
        for term in terms:
            title = tantivy.Query.term_query(self._schema, "title", term)
            should.append((tantivy.Occur.Should, tantivy.Query.boost_query(title, _TITLE_WEIGHT)))
            should.append((tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "text", term)))
        return tantivy.Query.boolean_query(should)

    def _scored(self, query: tantivy.Query, num: int) -> list[tuple[int, float]]:
        """(page number, score), best first.

        Looks further while the cut falls between equal scores: the index orders those by its own segments.
        """
        limit = num + 1
        while True:
            hits = self._searcher.search(query, limit=limit, count=False).hits
            scores = [round(score, 4) for score, _ in hits]
            if len(hits) < limit or scores[-1] < scores[num - 1]:
                break
            limit *= 2
        order = self._searcher.fast_field_values("order", [address for _, address in hits])
        return sorted(zip(order, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))[:num]

    def _rarity(self, term: str) -> float:
        """Inverse document frequency: a snippet shows the rare word of a query before the common one."""
        return math.log(1 + len(self.pages) / (1 + self._searcher.doc_freq("text", term)))


class Session:
    """The browser of one episode: the results of the latest search and the page opened last."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._results: tuple[Page, ...] = ()
        self._page: Page | None = None

    async def search(self, query: str, num: int = 10) -> ToolResult:
        """The best `num` pages as numbered blocks.  bad_call for an empty query or a `num` that is no count."""
        count = _as_int(num)
        if not isinstance(query, str) or not query.strip():
            return ToolResult(EMPTY_QUERY, error="bad_call")
        if count is None or count < 1:
            return ToolResult("num must be a positive integer.", error="bad_call")
        hits = self._corpus.rank(query, min(count, self._corpus.max_results))
        self._results = tuple(hit.page for hit in hits)
        if not hits:
            return ToolResult(NO_RESULTS, error="not_found")
        blocks = (_block(i, hit) for i, hit in enumerate(hits))
        seen = tuple(Seen(hit.page.url, hit.page.title, "snippet", hit.snippet) for hit in hits)
        return ToolResult("\n\n".join(blocks).strip(), seen)

    async def open(self, id_or_url: int | str) -> ToolResult:
        """The start of the page with that number in the latest search, or at that address.

        The whole page stays open for `find`.  An unknown number or address leaves the page before it open.
        """
        page = self._target(id_or_url)
        if page is None:
            return self._unknown_target(id_or_url)
        self._page = page
        header, output = _header(page), page_text(page)[: self._corpus.page_chars]
        return ToolResult(output, (Seen(page.url, page.title, "page", output[len(header) :]),))

    async def find(self, pattern: str) -> ToolResult:
        """Where `pattern` stands on the open page, each place with its surroundings."""
        if not isinstance(pattern, str) or not pattern.strip():
            return ToolResult(EMPTY_PATTERN, error="bad_call")
        if self._page is None:
            return ToolResult(NO_PAGE, error="bad_call")
        text, radius = page_text(self._page), self._corpus.find_radius
        spans = find_spans(text, pattern, self._corpus.find_limit)
        if not spans:
            return ToolResult(NO_MATCHES, error="not_found")
        contexts = [text[max(0, start - radius) : end + radius].strip() for start, end in spans]
        output = "\n\n".join(f"[Match {k}]\n{context}" for k, context in enumerate(contexts, 1))
        url, title = self._page.url, self._page.title
        return ToolResult(output, tuple(Seen(url, title, "match", c) for c in dict.fromkeys(contexts)))

    def restore(self, calls: Sequence[ToolCall]) -> None:
        """Be where these calls of an interrupted episode left a session, by the pages that they showed."""
        for result in (call.result for call in calls if call.result):
            pages = tuple(page for s in result.seen if (page := self._corpus.lookup(s.url)))
            kind = result.seen[0].kind if result.seen else None
            if kind == "snippet" or result.output == NO_RESULTS:
                self._results = pages
            elif kind == "page":
                self._page = pages[0]

    def _target(self, id_or_url: int | str) -> Page | None:
        number = _as_int(id_or_url)
        if number is not None:
            return self._results[number] if 0 <= number < len(self._results) else None
        return self._corpus.lookup(id_or_url) if isinstance(id_or_url, str) else None

    def _unknown_target(self, target: Any) -> ToolResult:
        if _as_int(target) is not None:
            return ToolResult("There is no such id in the latest search results.", error="not_found")
        if isinstance(target, str) and target.strip():
            return ToolResult("There is no page at this address.", error="not_found")
        return ToolResult("Please give the id of a search result or a URL.", error="bad_call")


def page_text(page: Page) -> str:
    """The whole page as `open` lays it out and `find` searches it."""
    return _header(page) + page.text


def _header(page: Page) -> str:
    return f"Title: {_one_line(page.title)}\n\nURL Source: {page.url}\n\nMarkdown Content:\n"


def _block(i: int, hit: Hit) -> str:
    title = _one_line(hit.page.title)
    return f"[{i}] Title: {title}\n[{i}] URL Source: {hit.page.url}\n[{i}] Description: {hit.snippet}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _valid(text: str) -> str:
    """Without lone surrogates, which JSON can carry but no index."""
    return text.encode("utf-8", "ignore").decode()


def _as_int(value: Any) -> int | None:
    """3, 3.0, "3" and " 3 " as 3; anything else, bool included, as None."""
    if isinstance(value, str):
        value = value.strip()
        # The length bound keeps clear of Python's limit on digits.
        return int(value) if re.fullmatch(r"-?[0-9]{1,9}", value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def _unique_by_url(pages: Sequence[Page]) -> dict[str, Page]:
    by_url = {canonical_url(page.url): page for page in pages}
    if not pages:
        raise ValueError("a corpus needs at least one page, got none")
    if len(by_url) < len(pages):
        counts = Counter(canonical_url(page.url) for page in pages)
        double = [url for url, count in counts.items() if count > 1]
        raise ValueError(f"{len(double)} addresses have several pages, e.g. {double[0]!r}; keep one page each")
    return by_url


def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.remove_long(64))
    for step in (tantivy.Filter.ascii_fold(), tantivy.Filter.lowercase(), tantivy.Filter.stemmer("english")):
        builder = builder.filter(step)
    return builder.build()


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("title", tokenizer_name="carr")
    builder.add_text_field("text", tokenizer_name="carr")
    builder.add_unsigned_field("order", fast=True)
    return builder.build()


def _build(
    pages: Sequence[Page], schema: tantivy.Schema, analyzer: tantivy.TextAnalyzer, directory: str | Path | None
) -> tantivy.Index:
    """Index `pages` with one writer thread: several would spread them over segments by chance."""
    if directory is not None:
        Path(directory).mkdir(parents=True, exist_ok=True)
    index = tantivy.Index(schema, path=None if directory is None else str(directory), reuse=False)
    index.register_tokenizer("carr", analyzer)
    writer = index.writer(heap_size=_WRITER_BYTES, num_threads=1)
    writer.delete_all_documents()
    for order, page in enumerate(pages):
        document = tantivy.Document()
        document.add_text("title", _valid(page.title))
        document.add_text("text", _valid(page.text))
        document.add_unsigned("order", order)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index
