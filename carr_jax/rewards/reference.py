"""Citations exactly as the public reference reads them, for comparing numbers with it.

What it does with a response (the faults are its own, facts RC-03, RC-04, RC-09):

    response_text     everything behind the last "## References" is cut, whatever it is
    cited_urls        `[n](url` up to the first `)` that `]` or `,` follows on the same line
    cited_pages       of each cited URL, by exact spelling, what the tools' texts said of it
    context           those pages in the layout that its judge reads

Training uses `rewards.citations`; these are chosen with `reward.citations=strict_reference`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from carr_jax.records import ToolCall, Trajectory
from carr_jax.rewards.citations import MAX_PAGES, Reading

SEARCH, OPEN, FIND = "browser.search", "browser.open", "browser.find"
_CITATION = re.compile(r"\[\d+\]\((?:view-source:)?(https?://.*?)\)[\],]")
_PREFIX = re.compile(r"https?://r\.jina\.ai/|view-source:")
_RESULT = re.compile(
    r"\[(?P<k>\d+)\] Title:\s(?P<title>.+?)"
    r"\[(?P=k)\] URL Source:\s(?P<url>.+?)"
    r"\[(?P=k)\] Description:\s(?P<text>.+?)"
    r"(?:\[(?P=k)\] Date:\s(?P<date>.+?))?(?=\[\d+\] Title:|\Z)",
    re.DOTALL,
)
_TITLE = re.compile(r"Title:\s*(.+)")
_URL = re.compile(r"URL Source:\s*(\S+)")
_PUBLISHED = re.compile(r"Published Time:\s*([^\n]+)")
_CONTENT = re.compile(r"Markdown Content:\s*(.*)", re.DOTALL)


class Shown(NamedTuple):
    """One piece of a page in a tool's text; `published` is "" where the tool gave no date."""

    url: str
    title: str
    published: str
    text: str


def read(trajectory: Trajectory) -> Reading:
    """What the reference's judge is given: the response with its links, and pages by exact spelling."""
    response = trajectory.response or ""
    answer = response_text(response)
    return Reading(answer, answer, lambda: cited_pages(trajectory.calls, cited_urls(response)))


def search_results(output: str) -> list[Shown]:
    """The result blocks `[i] Title / URL Source / Description (/ Date)` of a search."""
    return [
        Shown(m["url"].strip(), m["title"].strip(), (m["date"] or "").strip(), m["text"].strip())
        for m in _RESULT.finditer(output)
    ]


def opened_page(output: str) -> Shown:
    """The header fields of a page's text, and what follows its "Markdown Content:"; "" for what is missing."""
    found = (pattern.search(output) for pattern in (_URL, _TITLE, _PUBLISHED, _CONTENT))
    return Shown(*(match[1].strip() if match else "" for match in found))


def response_text(response: str) -> str:
    """`response` up to its last "## References"."""
    return response.rpartition("## References")[0] if "## References" in response else response


def cited_urls(response: str) -> list[str]:
    """The cited URLs in order, one each by exact spelling."""
    urls = (_PREFIX.sub("", match[1]).strip() for match in _CITATION.finditer(response_text(response)))
    return list(dict.fromkeys(urls))


@dataclass
class _Page:
    """What the tools said of one URL, each kind in order."""

    title: str
    published: str
    snippets: list[str] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    matches: list[tuple[str, str]] = field(default_factory=list)  # (pattern, hits)


def cited_pages(calls: Iterable[ToolCall], urls: Sequence[str], limit: int = MAX_PAGES) -> dict[str, str]:
    """The text of the first `limit` cited URLs that the calls' outputs speak of, as the reference lays it out.

    A snippet, content or find result that stood under an earlier page is not repeated under a later one.
    """
    pages, said = _collect(calls), set()
    found: dict[str, str] = {}
    for url in urls:
        if url in pages and len(found) < limit:
            found[url] = _layout(url, pages[url], said)
    return found


def context(pages: Iterable[str]) -> str:
    """All cited pages as the one text that the reference's judge reads."""
    return "".join(f"[Webpage {k}]\n{page}" for k, page in enumerate(pages, 1))


def _collect(calls: Iterable[ToolCall]) -> dict[str, _Page]:
    pages: dict[str, _Page] = {}
    opened = None
    for call in calls:
        output = call.result.output if call.result else ""
        if call.name == SEARCH:
            for shown in search_results(output):
                _page(pages, shown).snippets.append(shown.text)
        elif call.name == OPEN:
            shown = opened_page(output)
            opened = shown.url
            _page(pages, shown).contents.append(shown.text)
        elif call.name == FIND and opened in pages:
            pages[opened].matches.append((str(call.arguments.get("pattern", "")), output))
    return pages


def _page(pages: dict[str, _Page], shown: Shown) -> _Page:
    return pages.setdefault(shown.url, _Page(shown.title, shown.published))


def _layout(url: str, page: _Page, said: set[tuple[str, str]]) -> str:
    def new(kind: str, text: str) -> bool:
        return not ((kind, text) in said or said.add((kind, text)))

    published = f"Published Time: {page.published}\n" if page.published else ""
    title = f"Title: {page.title}\n" if page.title else ""
    parts = [f"URL Source: {url}\n{title}{published}\n"]
    parts += [f"Snippet:\n{text}\n\n" for text in page.snippets if new("snippet", text)]
    parts += [f"Content:\n{text}\n\n" for text in page.contents if new("content", text)]
    parts += [
        f'Search Result of Keyword "{pattern}":\n{text}\n\n'
        for pattern, text in page.matches
        if text and new("match", text)
    ]
    return "".join(parts)
