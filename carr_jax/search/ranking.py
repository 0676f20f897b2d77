"""Which pages fit a query, and what is shown of them: BM25 with k1 1.2 and b 0.75, the title counted twice.

Words are stemmed (English), folded to ASCII and lower-cased.  Pages in memory and pages on disk are ranked by
this one piece of code, so equal pages are ranked equally.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tantivy

from carr_jax.records import Page
from carr_jax.search.snippets import Outline, outlined

_TITLE_WEIGHT = 2.0
_QUERY_TERMS = 64  # a query is a handful of words; this only bounds what a babbling policy can cost
_USUAL_TIES = 32  # pages looked at beyond those that are shown, because looking again takes as long as looking
_MOST_TIES = 4096  # pages of one score that are put in the order of the pages
_CACHED_PAGES = 1024  # taken apart for their snippets, in five times the memory of their texts
_CACHED_CHARS = range(2_000, 50_000)  # of a page; a shorter or longer one is taken apart in each search
_WRITER_BYTES = 256_000_000  # large enough that usual corpora become a single segment


@dataclass(frozen=True)
class Found:
    """A page that fits a query: its number, its BM25 score, and where the index keeps it."""

    number: int
    score: float
    address: tantivy.DocAddress


@dataclass(frozen=True)
class Ranked:
    """A page that fits a query: its score and the part of its text that fits the query best."""

    page: Page
    score: float
    snippet: str


class Ranker:
    """Ranks the pages of an index.  Raises ValueError for a snippet of no characters."""

    def __init__(self, index: tantivy.Index, snippet_chars: int) -> None:
        if snippet_chars < 1:
            raise ValueError("snippet_chars must be at least 1")
        self.schema, self.searcher = index.schema, index.searcher()
        self._snippet_chars = snippet_chars
        self._analyzer = _analyzer()
        self._outline = functools.lru_cache(_CACHED_PAGES)(self._outlined)

    def terms(self, text: str) -> list[str]:
        """Distinct index terms of `text` in order."""
        return list(dict.fromkeys(self._analyzer.analyze(valid(text))))

    def best(self, query: str, num: int) -> list[Found]:
        """The best `num` pages for the words of `query`; equal scores keep the order of the pages.

        The words are never parsed as operators, so any text is a valid query.  Scores count to four digits.
        """
        terms = self.terms(query)[:_QUERY_TERMS]
        if not terms or num < 1:
            return []
        boolean, limit = self._query(terms), num + _USUAL_TIES
        while True:  # looks further while the cut falls between equal scores: an index orders those by chance
            hits = self.searcher.search(boolean, limit=limit, count=False).hits
            scores = [round(score, 4) for score, _ in hits]
            if len(hits) < limit or scores[-1] < scores[num - 1] or limit > num + _MOST_TIES:
                break
            limit *= 2
        enough = scores[:num][-1] if scores else 0.0
        best = [(s, address) for s, (_, address) in zip(scores, hits, strict=True) if s >= enough]
        numbers = self.searcher.fast_field_values("order", [address for _, address in best])
        found = [Found(n, s, address) for n, (s, address) in zip(numbers, best, strict=True)]
        return sorted(found, key=lambda f: (-f.score, f.number))[:num]

    def rank(self, query: str, found: Sequence[Found], page_of: Callable[[Found], Page]) -> list[Ranked]:
        """What was found for a query, with its pages and what is shown of them."""
        snippet = self.snippets(query)
        return [Ranked(page := page_of(f), f.score, snippet(page)) for f in found]

    def snippets(self, query: str) -> Callable[[Page], str]:
        """What is shown of a page: the stretch of its text with the heaviest distinct terms of a query.

        On a tie it is the first.  What the title says already counts a tenth.
        """
        terms = sorted(self.terms(query)[:_QUERY_TERMS])
        weights = {hash(term): self._rarity(term) for term in terms}
        beginnings = [word_beginning(term) for term in terms]

        def looked_for(part: str) -> Sequence[str]:
            """The terms in a part of a page, if the query's can be among them."""
            low = part.lower()
            found = not part.isascii() or any(beginning in low for beginning in beginnings)
            return self._analyzer.analyze(part) if found else ()

        def snippet(page: Page) -> str:
            said = {n: 0.1 * weights[n] for n in map(hash, self.terms(page.title)) if n in weights}
            cached = len(page.text) in _CACHED_CHARS
            outline = self._outline(page.text) if cached else self._outlined(page.text, looked_for)
            return outline.best_stretch(weights | said)

        return snippet

    def _outlined(self, text: str, terms: Callable[[str], Sequence[str]] | None = None) -> Outline:
        """On one line, so that a page cannot forge another result."""
        return outlined(valid(" ".join(text.split())), self._snippet_chars, terms or self._analyzer.analyze)

    def _query(self, terms: Sequence[str]) -> tantivy.Query:
        should = []
        for term in terms:
            title = tantivy.Query.term_query(self.schema, "title", term)
            should.append((tantivy.Occur.Should, tantivy.Query.boost_query(title, _TITLE_WEIGHT)))
            should.append((tantivy.Occur.Should, tantivy.Query.term_query(self.schema, "text", term)))
        return tantivy.Query.boolean_query(should)

    def _rarity(self, term: str) -> float:
        """Inverse document frequency: a snippet shows the rare word of a query before the common one."""
        return math.log(1 + self.searcher.num_docs / (1 + self.searcher.doc_freq("text", term)))


def word_beginning(term: str) -> str:
    """What every ASCII word of this index term begins with, in lower case.

    English stemming changes at most the last letter of what it leaves, but in "lying", which becomes "lie".
    """
    return term[:1] if len(term) == 3 and term.endswith("ie") else term[:-1]


def valid(text: str) -> str:
    """Without lone surrogates, which JSON can carry but no index."""
    return text.encode("utf-8", "ignore").decode()


# ---------------------------------------------------------------------------------------------------- the index


def new_index(path: str | None = None, stored: bool = False) -> tantivy.Index:
    """An empty index, in memory without `path`.  `stored`: it also keeps the pages, found by their `key`."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("title", stored=stored, tokenizer_name="carr", index_option="freq")
    builder.add_text_field("text", stored=stored, tokenizer_name="carr", index_option="freq")
    builder.add_unsigned_field("order", fast=True, indexed=stored)
    if stored:
        builder.add_text_field("url", stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("key", tokenizer_name="raw", index_option="basic")
    return _tokenized(tantivy.Index(builder.build(), path=path, reuse=False))


def opened_index(path: str) -> tantivy.Index:
    """An index that is on disk."""
    return _tokenized(tantivy.Index.open(path))


def writer(index: tantivy.Index) -> tantivy.IndexWriter:
    """Writes with one thread: several would spread the pages over segments by chance."""
    return index.writer(heap_size=_WRITER_BYTES, num_threads=1)


def document(number: int, page: Page) -> tantivy.Document:
    """What is indexed of a page."""
    made = tantivy.Document()
    made.add_text("title", valid(page.title))
    made.add_text("text", valid(page.text))
    made.add_unsigned("order", number)
    return made


def _tokenized(index: tantivy.Index) -> tantivy.Index:
    index.register_tokenizer("carr", _analyzer())
    return index


def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.remove_long(64))
    for step in (tantivy.Filter.ascii_fold(), tantivy.Filter.lowercase(), tantivy.Filter.stemmer("english")):
        builder = builder.filter(step)
    return builder.build()
