"""Where pages come from: a reader service that fetches and cleans them (Jina), or our own fetcher."""

from __future__ import annotations

import re

from yarl import URL

from carr_jax.calls.errors import CallError
from carr_jax.calls.http import Answer
from carr_jax.records import Page
from carr_jax.search.browser import Outage
from carr_jax.search.extract import NoText, cleaned
from carr_jax.search.fetch import Fetcher
from carr_jax.search.safety import Refused, Rules, checked
from carr_jax.search.said import missing, status_missing
from carr_jax.search.service import Call, Service
from carr_jax.search.workers import Workers

JINA = "https://r.jina.ai/"
_MOST_CHARS = 1_000_000
_LAYOUT = re.compile(r"\s*Title: ?(?P<title>[^\n]*)\n+(?P<head>(?:[A-Z][^\n]*\n+){0,8}?)Markdown Content:\n?")
_SOURCE = re.compile(r"^URL Source: ?(\S+)", re.MULTILINE)
_PUBLISHED = re.compile(r"^Published Time: ?(\S[^\n]{0,99})$", re.MULTILINE)
_WARNING = re.compile(r"^Warning: Target URL returned error (\d{3})", re.MULTILINE)
_NO_ANSWER = (504, 520, 521, 522, 523, 524, 525, 526, 530)  # of the site behind the reader (TS-11)
_KEY_OR_LIMIT = (401, 402, 403, 408, 429)


class Reader:
    """Pages by a reader service.  Only public addresses are told to it, as far as their spelling shows."""

    def __init__(self, service: Service, rules: Rules = Rules()) -> None:
        self._service, self._rules = service, rules

    async def page(self, url: str) -> Page:
        """The page at an address.  Raises Missing, and Outage."""
        try:
            checked(url, self._rules)
            service = self._service.address.url.rstrip("/")
            target = URL(f"{service}/{URL(url).with_fragment(None)}", encoded=True)
        except Refused as refusal:
            raise missing(refusal.reason) from refusal
        except ValueError as error:
            raise missing("scheme") from error

        def request(key: str) -> Call:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return Call("GET", target, {**headers, "Accept": "text/plain"}, {})

        try:
            answer = await self._service.call("page", request, lambda answer: answer, _is_about_the_page)
        except CallError as error:
            raise (missing("too_large") if error.kind == "endless" else Outage(error.kind)) from error
        return read_page(answer, url)


def _is_about_the_page(status: int) -> bool:
    return status in _NO_ANSWER or (status < 500 and status not in _KEY_OR_LIMIT)


def read_page(answer: Answer, url: str) -> Page:
    """The page in the text layout of the reader.  Raises Missing, also for an error page that came as text."""
    if answer.status != 200:
        raise status_missing(answer.status)
    text = answer.body.decode("utf-8", "replace")
    layout = _LAYOUT.match(text)
    head = layout["head"] if layout else ""
    if warning := _WARNING.search(head):
        raise status_missing(int(warning[1]))
    source, published = _SOURCE.search(head), _PUBLISHED.search(head)
    body = cleaned(text[layout.end() :] if layout else text)[:_MOST_CHARS]
    if not body:
        raise missing("empty")
    title = " ".join(cleaned(layout["title"]).split()) if layout else ""
    return Page(source[1] if source else url, title, body, cleaned(published[1]) if published else "")


class OwnReader:
    """Pages that we fetch and read ourselves."""

    def __init__(self, fetcher: Fetcher, workers: Workers) -> None:
        self._fetcher, self._workers = fetcher, workers

    async def page(self, url: str) -> Page:
        """The page at an address.  Raises Missing, and Outage."""
        document = await self._fetcher.fetch(url)
        try:
            found = await self._workers.extract(document.body, document.content_type, document.url)
        except NoText as nothing:
            raise missing(nothing.reason) from nothing
        return Page(document.url, found.title, found.text)
