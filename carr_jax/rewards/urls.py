"""Addresses in running text, and the key under which two spellings of one address compare equal.

All functions take linear time, whatever a policy or a page wrote.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote_to_bytes, urlsplit

_SCHEME = re.compile(r"https?://", re.IGNORECASE)
# A backslash escape is skipped, a bracket counted, anything else ends the URL.
LINK_STOP = re.compile(r"\\[!-/:-@\[-`{-~]|[()]|[\s<>\"`]")
_BARE_STOP = re.compile(
    r"\\[!-/:-@\[-`{-~]|[()]|[\s<>\"`|\[\]{}\u2018-\u201f\u2026\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]"
    r"|[,;](?=https?://)",
    re.IGNORECASE,
)
_ANGLE_STOP = re.compile(r"[<>\n]")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_LINK_TARGET = re.compile(r"\]\(\s{0,20}<?(?:view-source:)?$", re.IGNORECASE)
_READER = re.compile(
    r"(?:view-source:|https?://r\.jina\.ai(?::\d*)?/(?=(?:view-source:|https?://)))+", re.IGNORECASE
)


# ------------------------------------------------------------------------------------------ addresses in text


class Found(NamedTuple):
    """An address as written, and where it begins in the text."""

    start: int
    url: str


def urls_in(text: str) -> Iterator[Found]:
    """Every http(s) address of `text` in order: markdown link, autolink or bare, in any brackets."""
    position = 0
    while scheme := _SCHEME.search(text, position):
        url, position = _read_url(text, scheme.start(), scheme.end())
        if _split(url):
            yield Found(scheme.start(), url)


def _read_url(text: str, start: int, after_scheme: int) -> tuple[str, int]:
    """The URL that starts at `start` and the position behind it."""
    before = text[max(0, start - 40) : start]
    if before.endswith("<") or before.casefold().endswith("<view-source:"):
        end = url_end(text, after_scheme, _ANGLE_STOP)
        return _ESCAPE.sub(r"\1", text[start:end].strip()), end
    in_link = _LINK_TARGET.search(before) is not None
    end = url_end(text, after_scheme, LINK_STOP if in_link else _BARE_STOP)
    url = text[start:end]
    if not (in_link and text[end : end + 1] == ")"):
        url = url.rstrip(".,;:!?'*_~\\")
    return _ESCAPE.sub(r"\1", url).replace("&amp;", "&"), end


def url_end(text: str, start: int, stop: re.Pattern) -> int:
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


# ----------------------------------------------------------------------------------------------- canonical key


def _split(url: str) -> SplitResult | None:
    """`urllib.parse.urlsplit`, or None for what is not an http(s) URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


# Most addresses need no thought: nothing to decode, drop or lower.
_PLAIN = re.compile(
    r"https?://(?!r\.jina\.ai/|www\.)((?:[a-z0-9][a-z0-9-]*\.)+[a-z]{2,})(/[\w.~/()!$'*,;:@&=+-]*)?\Z", re.ASCII
)
_CACHED_CHARS = 2_000  # longer addresses are no honest ones, and would fill the memory


def canonical_url(url: str) -> str:
    """The key under which two spellings of one page compare equal; never shown and never fetched (UC-10).

    Dropped: reader and view-source prefixes, the difference of http and https, "www.", case of the host,
    default port, fragment, trailing slash, empty query.  Escapes are decoded where that cannot change the
    meaning, and written in upper case elsewhere.  What is no http(s) URL is its own key.
    """
    if plain := _PLAIN.match(url):
        return f"https://{plain[1]}{(plain[2] or '').rstrip('/')}"
    return _cached_key(url) if len(url) <= _CACHED_CHARS else _key(url)


def _key(url: str) -> str:
    url = unicodedata.normalize("NFC", url.strip())
    for _ in range(4):  # a prefix may surface once the URL is normalised
        stripped = _READER.sub("", url, count=1) if _READER.match(url) else url
        key = _normalised(stripped)
        if key == url:
            break
        url = key
    return url


_cached_key = functools.lru_cache(maxsize=1 << 14)(_key)


def _normalised(url: str) -> str:
    parts = _split(url)
    if parts is None:
        return url
    host = unicodedata.normalize("NFC", parts.hostname.rstrip("."))
    while host.startswith("www.") and "." in host[4:].rstrip("."):
        host = host[4:]
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
