"""A fixed set of pages in memory, searched by BM25; `index.py` is the same for pages on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from carr_jax.addresses import asked_keys, canonical_url
from carr_jax.records import Page
from carr_jax.search.browser import NO_ADDRESS, Hit, Limits, Missing, Session
from carr_jax.search.ranking import Ranked, Ranker, document, new_index, writer


class Corpus:
    """Pages and their index.  Raises ValueError for no pages and for two pages with the same address."""

    def __init__(self, pages: Iterable[Page], *, snippet_chars: int = 300, limits: Limits = Limits()) -> None:
        self.pages, self.limits = tuple(pages), limits
        self._by_url = _unique_by_url(self.pages)
        index = new_index()
        writing = writer(index)
        for number, page in enumerate(self.pages):
            writing.add_document(document(number, page))
        writing.commit()
        writing.wait_merging_threads()
        index.reload()
        self.ranker = Ranker(index, snippet_chars)

    def lookup(self, url: str) -> Page | None:
        """The page at `url`, however that is spelled; None when there is none."""
        return next((self._by_url[key] for key in asked_keys(url) if key in self._by_url), None)

    def rank(self, query: str, num: int = 10) -> list[Ranked]:
        """The best `num` pages for the words of `query`, best first."""
        found = self.ranker.best(query, num)
        return self.ranker.rank(query, found, lambda f: self.pages[f.number])

    async def search(self, query: str, num: int) -> list[Hit]:
        """As `browser.Source`; about a millisecond of work."""
        return [Hit(r.page.url, r.page.title, r.snippet) for r in self.rank(query, num)]

    async def page(self, url: str) -> Page:
        """As `browser.Source`."""
        if (page := self.lookup(url)) is None:
            raise Missing(NO_ADDRESS, "no_page")
        return page

    def session(self, question: str = "") -> Session:
        """A fresh browser for one episode; a fixed set of pages has nothing to withhold."""
        return Session(self, self.limits)


def _unique_by_url(pages: Sequence[Page]) -> dict[str, Page]:
    by_url = {canonical_url(page.url): page for page in pages}
    if not pages:
        raise ValueError("a corpus needs at least one page, got none")
    if len(by_url) < len(pages):
        counts = Counter(canonical_url(page.url) for page in pages)
        double = [url for url, count in counts.items() if count > 1]
        raise ValueError(f"{len(double)} addresses have several pages, e.g. {double[0]!r}; keep one page each")
    return by_url
