"""Which pages a response cites, and what its trajectory saw of them.

The public reference accepts one spelling of a citation and fuses two links when it meets another (kept in
`rewards.reference`).  Here a citation is any address in the prose, however it is written, and any number such
as `[3]` there that the References give an address.  All functions take linear time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from carr_jax.addresses import canonical_url, host_of
from carr_jax.records import Seen, Trajectory
from carr_jax.rewards.urls import LINK_STOP, Found, url_end, urls_in

MAX_PAGES = 20  # cited pages that count (CaRR eq. 8)
_LINK = re.compile(r"\[([^\[\]\n]{1,200})\]\([\s<]{0,20}(?:view-source:)?https?://", re.IGNORECASE)
_LINK_END = re.compile(r"[)\n]|\Z")
_BARE_ADDRESS = re.compile(r"https?://[^\s<>]+", re.IGNORECASE)


@dataclass(frozen=True)
class Reading:
    """What a judge is given of a trajectory.

    `answer` is the response without its References, `stated` the same without addresses (an address names
    nobody), `collect` finds the cited pages.
    """

    answer: str
    stated: str
    collect: Callable[[], Mapping[str, str]]

    @functools.cached_property
    def pages(self) -> Mapping[str, str]:
        """Each cited page with the text that the trajectory saw of it; worked out when first asked for."""
        return self.collect()


def read(trajectory: Trajectory) -> Reading:
    """The tolerant reading; `rewards.reference.read` is the strict one."""
    response = trajectory.response or ""
    answer = without_references(response)
    return Reading(answer, without_links(answer), lambda: _cited_pages(trajectory, response))


def _cited_pages(trajectory: Trajectory, response: str) -> dict[str, str]:
    return seen_text(trajectory.seen, cited_urls(response))


# ---------------------------------------------------------------------------------------------------- sections

_REFERENCES = ("references", "reference", "sources", "bibliography", "works cited", "参考文献", "参考资料")
# A heading of any kind; a line that is no markdown heading is one when it is bold or underlined, or ends with a
# colon, and announces references.
_HEADING = re.compile(
    r"^ {0,3}(?:(?P<rank>#{1,6})[ \t]+(?P<title>\S[^\n]*)"
    rf"|(?P<bare>(?:\*\*|__)(?:{'|'.join(_REFERENCES)})[ \t]*[:：]?(?:\*\*|__)[:：]?[ \t]*"
    rf"|(?:{'|'.join(_REFERENCES)})[ \t]*(?:[:：][ \t]*|\n[ \t]*(?:={{3,}}|-{{3,}})[ \t]*)))$",
    re.MULTILINE | re.IGNORECASE,
)
_LOWEST = 7  # rank of such a line: any markdown heading ends what stands under it


class Section(NamedTuple):
    """A section `text[start:end]`, heading included; level 0 is what stands before any heading."""

    title: str
    level: int
    start: int
    body: int
    end: int


def sections(text: str) -> Iterator[Section]:
    """The sections of a response in order; titles are folded to lower case without `*`, `#` and colon."""
    marks = [
        (
            (m["title"] or m["bare"]).strip(" \t\r\n*#:：_=-").casefold(),
            len(m["rank"] or "#" * _LOWEST),
            m.start(),
            m.end(),
        )
        for m in _HEADING.finditer(text)
    ]
    ends = [start for _, _, start, _ in marks] + [len(text)]
    yield Section("", 0, 0, 0, ends[0])
    for (title, level, start, body), end in zip(marks, ends[1:], strict=True):
        yield Section(title, level, start, body, end)


def split_references(response: str) -> tuple[str, str]:
    """(prose, references): what follows References under a heading of the same rank is prose again (RC-09).

    Every such section is cut, not only the last: otherwise an empty second one would let the first count.
    """
    prose, references, cut_level = [], [], None
    for section in sections(response):
        if section.title in _REFERENCES:
            cut_level = section.level
        elif cut_level is not None and section.level <= cut_level:
            cut_level = None
        (prose if cut_level is None else references).append(response[section.start : section.end])
    return "".join(prose), "".join(references)


def without_references(response: str) -> str:
    """`response` without its References sections."""
    return split_references(response)[0]


# --------------------------------------------------------------------------------------------------- citations

_NUMBER = r"\d{1,3}"
# An entry of the References: "[3] ...", "[3]: ...", "[^3]: ...", "3. ...", "- [[3](...)]", "【3】...".
_ENTRY = re.compile(
    rf"^[ \t>]{{0,8}}(?:[-*+•][ \t]+)?(?:\*\*)?"
    rf"(?:[\[【［]{{1,2}}\^?({_NUMBER})[\]】］]|\(?({_NUMBER})[.)、．）])",
    re.MULTILINE,
)
# "[3]", "[^3]", "[1, 2]", "[1-3]", "【3】" in the prose, but neither a link nor a definition.
_MARKER = re.compile(
    rf"[\[【［]\s?(\^?{_NUMBER}(?:\s?[,，、;；–—-]\s?\^?{_NUMBER}){{0,30}})\s?[\]】］](?![(（:：])"
)
_RANGE = re.compile(rf"({_NUMBER})(?:\s?[–—-]\s?({_NUMBER}))?")
_WIDEST = 30  # a longer range such as [1-200] is no citation


def cited_urls(response: str) -> list[str]:
    """The URLs that the prose of `response` cites: as written, in order, one per page.

    A number in the prose cites what the References give that number; an address under References that the
    prose does not point at is no citation.
    """
    prose, references = split_references(response)
    found = list(urls_in(prose))
    if defined := definitions(references):
        found = sorted([*found, *_marked(prose, defined)])
    first: dict[str, str] = {}
    for _, url in found:
        first.setdefault(canonical_url(url), url)
    return list(first.values())


def definitions(references: str) -> dict[int, str]:
    """The address of each numbered entry: the first of the entry, and of the first entry with that number."""
    entries = list(_ENTRY.finditer(references))
    bounds = [*(entry.start() for entry in entries), len(references)]
    defined: dict[int, str] = {}
    for entry, end in zip(entries, bounds[1:], strict=False):
        number = int(entry[1] or entry[2])
        address = next(urls_in(references[entry.start() : end]), None)
        if address and number not in defined:
            defined[number] = address.url
    return defined


def _marked(prose: str, defined: Mapping[int, str]) -> Iterator[Found]:
    for marker in _MARKER.finditer(prose):
        for part in _RANGE.finditer(marker[1]):
            first, last = int(part[1]), int(part[2] or part[1])
            if last - first < _WIDEST:
                yield from (Found(marker.start(), defined[n]) for n in range(first, last + 1) if n in defined)


def without_markers(text: str) -> str:
    """`text` without numbers in brackets, unless nothing else is there."""
    return _MARKER.sub("", text) if _MARKER.sub("", text).strip() else text


def without_links(text: str) -> str:
    """`text` without addresses: markdown links become their label, or nothing when that is only a number."""
    pieces, position = [], 0
    while link := _LINK.search(text, position):
        end = url_end(text, link.end(), LINK_STOP)
        if text[end : end + 1] != ")":  # a title, or ">", stands between target and bracket
            end = _LINK_END.search(text, end).start()
        pieces.append(text[position : link.start()])
        pieces.append("" if link[1].strip("^ ").isdigit() else link[1])
        position = end + (text[end : end + 1] == ")")
    return _BARE_ADDRESS.sub("", "".join(pieces) + text[position:])


# --------------------------------------------------------------------------------------------- what was seen


def seen_text(seen: Iterable[Seen], urls: Iterable[str], limit: int = MAX_PAGES) -> dict[str, str]:
    """For the first `limit` cited URLs that were seen: the title and every distinct piece of text shown.

    Keys are the URLs as cited, in order.  A page that was cited but never shown by a tool is left out and does
    not count towards the limit.  A page is found by the address that answered and by the one asked for.
    """
    cited = {canonical_url(url): url for url in urls}
    hosts = {None, *map(host_of, cited)}  # most of what was seen stands elsewhere, and is told by its host
    pieces: dict[str, list[Seen]] = {}
    for piece in seen:
        if piece.asked:
            keys = {canonical_url(piece.url), canonical_url(piece.asked)}
        elif host_of(piece.url) in hosts:
            keys = (canonical_url(piece.url),)
        else:
            continue
        for key in keys:
            if key in cited:
                pieces.setdefault(key, []).append(piece)
    texts = ((url, _page_text(pieces[key])) for key, url in cited.items() if key in pieces)
    found = ((url, text) for url, text in texts if text)
    return {url: text for (url, text), _ in zip(found, range(limit), strict=False)}


def _page_text(pieces: Iterable[Seen]) -> str:
    """Titles and texts in the order seen; nothing twice, and no excerpt of what was opened."""
    whole = {piece.text for piece in pieces if piece.kind == "page"}
    texts = (text for piece in pieces for text in (piece.title, piece.text))
    distinct = dict.fromkeys(text for text in texts if text.strip())
    return "\n\n".join(t for t in distinct if t in whole or not any(t in opened for opened in whole))
