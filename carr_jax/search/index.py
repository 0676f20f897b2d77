"""Pages on disk, searched by BM25, and by meaning too when the index was built with a dense model.

`launch/build_index.py` makes the folder; one that a kill left unfinished never has this name.  The texts are in
tantivy's own compressed store, so that memory holds no page.
"""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tantivy

from carr_jax.addresses import asked_keys
from carr_jax.records import InputError, Page
from carr_jax.search.browser import NO_ADDRESS, Hit, Limits, Missing, Session
from carr_jax.search.dense import DenseSearch, open_dense
from carr_jax.search.fusion import fused
from carr_jax.search.ranking import Found, Ranked, Ranker, opened_index

MANIFEST = "manifest.json"
LAYOUT = 2  # of the folder; another one is built anew
CANDIDATES = 100  # pages of each of the two rankings that are fused


class Index:
    """The pages of an index folder; many threads may search.  `close` it, or use it as a context.

    Raises InputError for a folder that is no index, not whole, or of another version; for `dense_model`, when
    the index was built without one or with another.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        snippet_chars: int = 300,
        limits: Limits = Limits(),
        dense_model: str = "",
    ) -> None:
        self.folder, self.limits = Path(folder), limits
        self.manifest = read_manifest(self.folder)
        try:
            self.ranker = Ranker(opened_index(str(self.folder / "words")), snippet_chars)
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(f"{folder}: the index cannot be opened ({error}); build it again") from None
        if len(self) != self.manifest["pages"]:
            raise InputError(
                f"{folder} holds {len(self):,} pages where its manifest says {self.manifest['pages']:,}; "
                "build it again"
            )
        self._dense: DenseSearch | None = (
            open_dense(self.folder, dense_model, self.manifest) if dense_model else None
        )
        self._threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="search")

    def __len__(self) -> int:
        return self.ranker.searcher.num_docs

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def lookup(self, url: str) -> Page | None:
        """The page at `url`, however that is spelled; None when there is none."""
        found = next((f for key in asked_keys(url) if (f := self._with("key", key))), None)
        return self._page(found) if found else None

    def rank(self, query: str, num: int = 10) -> list[Ranked]:
        """The best `num` pages, best first: by BM25, or by both rankings fused."""
        found = self.ranker.best(query, num if self._dense is None else max(num, CANDIDATES))
        if self._dense is not None:
            nearest = self._dense.nearest(query, max(num, CANDIDATES))
            found = self._fused(found, nearest, num)
        return self.ranker.rank(query, found, lambda f: self._page(f.address))

    async def search(self, query: str, num: int) -> list[Hit]:
        """As `browser.Source`, in a thread: what takes a millisecond here takes more for common words."""
        ranked = await self._threaded(self.rank, query, num)
        return [Hit(r.page.url, r.page.title, r.snippet) for r in ranked]

    async def page(self, url: str) -> Page:
        """As `browser.Source`."""
        page = await self._threaded(self.lookup, url)
        if page is None:
            raise Missing(NO_ADDRESS, "no_page")
        return page

    def session(self, question: str = "") -> Session:
        """A fresh browser for one episode; a fixed set of pages has nothing to withhold."""
        return Session(self, self.limits)

    async def _threaded(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _fused(self, found: list[Found], nearest: list[int], num: int) -> list[Found]:
        of = {f.number: f for f in found}
        order = fused([[f.number for f in found], nearest])[:num]
        return [Found(n, score, of[n].address if n in of else self._with("order", n)) for n, score in order]

    def _with(self, field: str, value: str | int) -> tantivy.DocAddress | None:
        query = tantivy.Query.term_query(self.ranker.schema, field, value)
        hits = self.ranker.searcher.search(query, limit=1, count=False).hits
        return hits[0][1] if hits else None

    def _page(self, address: tantivy.DocAddress) -> Page:
        stored = self.ranker.searcher.doc(address)
        return Page(*(stored.get_first(name) or "" for name in ("url", "title", "text")))


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `build` wrote of an index folder.  Raises InputError for what is none, or of another version."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        versions = (manifest["layout"], manifest["tantivy"])
        manifest["pages"]
    except (OSError, KeyError, TypeError, ValueError):
        raise InputError(f"{folder}: this is no index; make one with launch/build_index.py") from None
    if versions != (LAYOUT, index_format()):
        raise InputError(
            f"{folder}: built by another version ({versions[1]}, not {index_format()}); build it again"
        )
    return manifest


def index_format() -> str:
    """The format of tantivy's files, such as "index_format v7"."""
    return tantivy.__version__.rpartition(", ")[2]
