"""A fixed set of pages in memory, searched by BM25: the source of sessions when nothing else is configured."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tantivy

from carr_jax.records import Page
from carr_jax.search.browser import NO_ADDRESS, Hit, Limits, Missing, Session, canonical_url
from carr_jax.search.snippets import best_stretch

_TITLE_WEIGHT = 2.0
_QUERY_TERMS = 64  # a query is a handful of words; this only bounds what a babbling policy can cost
_WRITER_BYTES = 256_000_000  # large enough that usual corpora become a single segment
_CACHED_WORDS = 1 << 17  # whose index terms are remembered


@dataclass(frozen=True)
class Ranked:
    """A page that fits a query: its BM25 score and the part of its text that fits the query best."""

    page: Page
    score: float
    snippet: str


class Corpus:
    """Pages with a BM25 index (k1 1.2, b 0.75, English stemming, accents folded, title counted twice).

    Without `directory` the index lives in memory; with it, on disk.  Raises ValueError for no pages and for two
    pages with the same address.
    """

    def __init__(
        self,
        pages: Iterable[Page],
        directory: str | Path | None = None,
        *,
        snippet_chars: int = 300,
        limits: Limits = Limits(),
    ) -> None:
        if snippet_chars < 1:
            raise ValueError("snippet_chars must be at least 1")
        self.pages = tuple(pages)
        self.snippet_chars, self.limits = snippet_chars, limits
        self._by_url = _unique_by_url(self.pages)
        self._analyzer = _analyzer()
        self._schema = _schema()
        self._index = _build(self.pages, self._schema, self._analyzer, directory)
        self._searcher = self._index.searcher()
        self._word_terms = functools.lru_cache(_CACHED_WORDS)(self.terms)

    def lookup(self, url: str) -> Page | None:
        """The page at `url`, whatever its percent-encoding, scheme or fragment; None when there is none."""
        return self._by_url.get(canonical_url(url))

    def terms(self, text: str) -> list[str]:
        """Distinct index terms of `text` in order."""
        return list(dict.fromkeys(self._analyzer.analyze(_valid(text))))

    def rank(self, query: str, num: int = 10) -> list[Ranked]:
        """The best `num` pages for the words of `query`; equal scores keep the order of the pages.

        The words are never parsed as operators, so any text is a valid query.
        """
        terms = self.terms(query)[:_QUERY_TERMS]
        if not terms or num < 1:
            return []
        scored = self._scored(self._query(terms), num)
        weights = {term: self._rarity(term) for term in terms}
        return [Ranked(self.pages[i], score, self.snippet(self.pages[i], weights)) for i, score in scored]

    def snippet(self, page: Page, weights: dict[str, float]) -> str:
        """The stretch of at most `snippet_chars` with the heaviest distinct query terms; on a tie the first.

        What the title says already counts a tenth.
        """
        weights = weights | {term: 0.1 * weights[term] for term in self.terms(page.title) if term in weights}
        text = " ".join(page.text.split())  # one line, so that a page cannot forge another result
        return best_stretch(text, self.snippet_chars, weights, self._word_terms)

    async def search(self, query: str, num: int) -> list[Hit]:
        """As `search.browser.Source`; about a millisecond of work."""
        return [Hit(r.page.url, r.page.title, r.snippet) for r in self.rank(query, num)]

    async def page(self, url: str) -> Page:
        """As `search.browser.Source`."""
        if (page := self.lookup(url)) is None:
            raise Missing(NO_ADDRESS, "no_page")
        return page

    def session(self, question: str = "") -> Session:
        """A fresh browser for one episode; a fixed set of pages has nothing to withhold."""
        return Session(self, self.limits, question)

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


def _valid(text: str) -> str:
    """Without lone surrogates, which JSON can carry but no index."""
    return text.encode("utf-8", "ignore").decode()


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
