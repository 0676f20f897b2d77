"""A client of retrieval servers as Search-R1 has them: `POST /retrieve` gives whole documents for a query.

    {"queries": [...], "topk": n, "return_scores": true} -> {"result": [[{"document": {...}, "score": x}, ...]]}

Such a server finds documents and cannot fetch an address, so pages are those that its answers brought.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from carr_jax.addresses import asked_keys, canonical_url
from carr_jax.records import Page
from carr_jax.search.browser import NO_ADDRESS, Hit, Limits, Missing, Outage, Session
from carr_jax.search.dump import page_of
from carr_jax.search.posting import Poster
from carr_jax.search.snippets import outlined

_KEPT = 100_000  # pages that answers brought, by the time they were last used


class Retrieval:
    """Sessions over one retrieval server; `url` is the address of its `/retrieve`."""

    def __init__(
        self,
        url: str,
        *,
        snippet_chars: int = 300,
        limits: Limits = Limits(),
        request_s: float = 60.0,
        attempts: int = 4,
    ) -> None:
        self.limits, self._snippet_chars = limits, snippet_chars
        self._poster = Poster(url, "", request_s, attempts)
        self._pages: OrderedDict[str, Page] = OrderedDict()

    async def search(self, query: str, num: int) -> list[Hit]:
        """As `browser.Source`."""
        reply = await self._poster.post({"queries": [query], "topk": num, "return_scores": True})
        pages = documents(reply)[:num]
        for page in pages:
            self._keep(page)
        weights = dict.fromkeys(map(hash, _terms(query)), 1.0)
        return [Hit(page.url, page.title, self._snippet(page, weights)) for page in pages]

    async def page(self, url: str) -> Page:
        """As `browser.Source`."""
        key = next((key for key in asked_keys(url) if key in self._pages), None)
        if key is None:
            raise Missing(NO_ADDRESS, "no_page")
        self._pages.move_to_end(key)
        return self._pages[key]

    def session(self, question: str = "") -> Session:
        """A fresh browser for one episode; the documents are a fixed set, with nothing to withhold."""
        return Session(self, self.limits)

    def _keep(self, page: Page) -> None:
        self._pages[key] = self._pages.pop(key := canonical_url(page.url), page)
        if len(self._pages) > _KEPT:
            self._pages.popitem(last=False)

    def _snippet(self, page: Page, weights: dict[int, float]) -> str:
        text = " ".join(page.text.split())
        return outlined(text, self._snippet_chars, _terms).best_stretch(weights)


def documents(reply: Any) -> list[Page]:
    """The documents for the one query of a reply, with and without scores.  Raises Outage for another shape."""
    try:
        (found,) = reply["result"]
        return [page_of(row.get("document", row)) for row in found]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Outage("bad_reply") from None


def _terms(text: str) -> list[str]:
    """Words without their punctuation; there is no index here whose terms they could be."""
    return [word for part in text.lower().split() if (word := part.strip(".,;:!?()[]{}\"'"))]
