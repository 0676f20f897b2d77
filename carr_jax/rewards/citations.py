"""Which pages a response cites, and what its trajectory saw of them.

The public reference accepts one spelling of a citation and fuses two links when it meets another; here a
citation is any URL outside the References section, however it is written.  All functions take linear time.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote_to_bytes, urlsplit

from carr_jax.records import Trajectory

_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S[^\n]*)$", re.MULTILINE)
_SCHEME = re.compile(r"https?://", re.IGNORECASE)
# A backslash escape is skipped, a bracket counted, anything else ends the URL.
_LINK_STOP = re.compile(r"\\[!-/:-@\[-`{-~]|[()]|[\s<>\"`]")
_BARE_STOP = re.compile(
    r"\\[!-/:-@\[-`{-~]|[()]|[\s<>\"`|\[\]{}\u2018-\u201f\u2026\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]"
    r"|[,;](?=https?://)",
    re.IGNORECASE,
)
_ANGLE_STOP = re.compile(r"[<>\n]")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_LINK_TARGET = re.compile(r"\]\(\s{0,20}<?(?:view-source:)?$", re.IGNORECASE)
_LINK = re.compile(r"\[([^\[\]\n]{1,200})\]\([\s<]{0,20}(?:view-source:)?https?://", re.IGNORECASE)
_LINK_END = re.compile(r"[)\n]|\Z")
_READER = re.compile(
    r"(?:view-source:|https?://r\.jina\.ai(?::\d*)?/(?=(?:view-source:|https?://)))+", re.IGNORECASE
)


class Section(NamedTuple):
    """A markdown section `text[start:end]`, heading included; level 0 is what stands before any heading."""

    title: str
    level: int
    start: int
    body: int
    end: int


def sections(text: str) -> Iterator[Section]:
    """The sections of a response in order; titles are folded to lower case without `*`, `#` and colon."""
    marks = [
        (m[2].strip(" \t\r*#:_").casefold(), len(m[1]), m.start(), m.end()) for m in _HEADING.finditer(text)
    ]
    ends = [start for _, _, start, _ in marks] + [len(text)]
    yield Section("", 0, 0, 0, ends[0])
    for (title, level, start, body), end in zip(marks, ends[1:], strict=True):
        yield Section(title, level, start, body, end)


def without_references(response: str) -> str:
    """`response` without its References sections; what follows under a heading of the same rank stays (RC-09).

    Every such section is cut, not only the last: otherwise an empty second one would let the first count.
    """
    kept, cut_level = [], None
    for section in sections(response):
        if section.title in ("references", "reference"):
            cut_level = section.level
        elif cut_level is not None and section.level <= cut_level:
            cut_level = None
        if cut_level is None:
            kept.append(response[section.start : section.end])
    return "".join(kept)


def cited_urls(response: str, limit: int = 20) -> list[str]:
    """The URLs that `response` cites outside References: as written, one per page, at most `limit`."""
    found: dict[str, str] = {}
    text = without_references(response)
    position = 0
    while len(found) < limit and (scheme := _SCHEME.search(text, position)):
        url, position = _read_url(text, scheme.start(), scheme.end())
        if _split(url):
            found.setdefault(canonical_url(url), url)
    return list(found.values())


def _read_url(text: str, start: int, after_scheme: int) -> tuple[str, int]:
    """The URL that starts at `start` and the position behind it."""
    before = text[max(0, start - 40) : start]
    if before.endswith("<") or before.casefold().endswith("<view-source:"):
        end = _end(text, after_scheme, _ANGLE_STOP)
        return _ESCAPE.sub(r"\1", text[start:end].strip()), end
    in_link = _LINK_TARGET.search(before) is not None
    end = _end(text, after_scheme, _LINK_STOP if in_link else _BARE_STOP)
    url = text[start:end]
    if not (in_link and text[end : end + 1] == ")"):
        url = url.rstrip(".,;:!?'*_~\\")
    return _ESCAPE.sub(r"\1", url).replace("&amp;", "&"), end


def _end(text: str, start: int, stop: re.Pattern) -> int:
    """Where a URL ends: at the first stop character, a closing bracket only when it was not opened inside."""
    depth = 0
    for match in stop.finditer(text, start):
        if match[0] == "(":
            depth += 1
        elif match[0] == ")" and depth:
            depth -= 1
        elif len(match[0]) == 1:
            return match.start()
    return len(text)


_BARE_ADDRESS = re.compile(r"https?://[^\s<>]+", re.IGNORECASE)


def without_links(text: str) -> str:
    """`text` without addresses: markdown links become their label, or nothing when that is only a number."""
    pieces, position = [], 0
    while link := _LINK.search(text, position):
        end = _end(text, link.end(), _LINK_STOP)
        if text[end : end + 1] != ")":  # a title, or ">", stands between target and bracket
            end = _LINK_END.search(text, end).start()
        pieces.append(text[position : link.start()])
        pieces.append("" if link[1].strip("^ ").isdigit() else link[1])
        position = end + (text[end : end + 1] == ")")
    return _BARE_ADDRESS.sub("", "".join(pieces) + text[position:])


# ----------------------------------------------------------------------------------------------- canonical key


def _split(url: str) -> SplitResult | None:
    """`urllib.parse.urlsplit`, or None for what is not an http(s) URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def canonical_url(url: str) -> str:
    """The key under which two spellings of one page compare equal; never shown and never fetched (UC-10).

    Dropped: reader and view-source prefixes, the difference of http and https, case of the host, default
    port, fragment, trailing slash, empty query.  Escapes are decoded where that cannot change the meaning, and
    written in upper case elsewhere.  What is no http(s) URL is its own key.
    """
    url = unicodedata.normalize("NFC", url.strip())
    for _ in range(4):  # a prefix may surface once the URL is normalised
        stripped = _READER.sub("", url, count=1) if _READER.match(url) else url
        key = _normalised(stripped)
        if key == url:
            break
        url = key
    return url


def _normalised(url: str) -> str:
    parts = _split(url)
    if parts is None:
        return url
    host = unicodedata.normalize("NFC", parts.hostname.rstrip("."))
    host = f"[{host}]" if ":" in host else host
    default = parts.port in (None, 80 if parts.scheme == "http" else 443)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    path = _normalised_escapes(parts.path, safe="/!$'()*,;:@&=+").rstrip("/")
    query = _normalised_escapes(parts.query, safe="/?!$'()*,:@", keep="&=+;")
    return f"https://{user}{host}{'' if default else f':{parts.port}'}{path}{'?' if query else ''}{query}"


_OCTETS = re.compile(r"(?:%[0-9A-Fa-f]{2})+|[^%]+|%")


def _normalised_escapes(text: str, safe: str, keep: str = "") -> str:
    """Decode escapes of unreserved and `safe` characters; characters of `keep` stay as they were written.

    "/" is in `safe` because it may stand there unescaped, but an escaped "%2F" in a path names another resource
    and stays; in a query ("?" in `safe`) the two are equal.
    """

    def one(match: re.Match) -> str:
        run = match[0]
        if run == "%":
            return "%25"
        if not run.startswith("%"):
            return quote(run, safe=safe + keep, errors="surrogatepass")
        return quote(unquote_to_bytes(run), safe=safe if "?" in safe else safe.replace("/", ""))

    return _OCTETS.sub(one, text)


# --------------------------------------------------------------------------------------------- what was seen


def seen_text(trajectory: Trajectory, urls: Iterable[str]) -> dict[str, str]:
    """For each cited URL that the trajectory saw: its title and every distinct piece of text shown of it.

    Keys are the URLs as cited, in order.  A page that was cited but never shown by a tool is left out.
    """
    pieces: dict[str, dict[str, None]] = {}
    for seen in trajectory.seen:
        page = pieces.setdefault(canonical_url(seen.url), {})
        page.update(dict.fromkeys(text for text in (seen.title, seen.text) if text.strip()))
    found = ((url, pieces.get(canonical_url(url))) for url in urls)
    return {url: "\n\n".join(page) for url, page in found if page}
