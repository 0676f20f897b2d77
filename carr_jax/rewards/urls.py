"""Addresses in running text, and the key under which two spellings of one address compare equal.

All functions take linear time, whatever a policy or a page wrote.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from carr_jax.addresses import http_address

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
        if http_address(url):
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


# Most addresses are already written so that only their escapes need thought.
_USUAL = re.compile(
    r"https?://(?!(?:www\.)*r\.jina\.ai/)((?:[a-z0-9][a-z0-9-]*\.)+[a-z]{2,})"
    r"(/[\w.~/()!$'*,;:@&=+%-]*)?(?:\?([\w.~/?()!$'*,;:@&=+%-]*))?(?:#.*)?\Z",
    re.ASCII,
)
_CACHED_CHARS = 2_000  # longer addresses are no honest ones, and would fill the memory


def canonical_url(url: str) -> str:
    """The key under which two spellings of one page compare equal; never shown and never fetched (UC-10).

    Dropped: reader and view-source prefixes, the difference of http and https, "www.", case of the host,
    default port, fragment, trailing slash, empty query.  Escapes are decoded where that cannot change the
    meaning, and written in upper case elsewhere.  What is no http(s) URL is its own key.
    """
    usual = _USUAL.match(url)
    if not usual:
        return _cached_key(url) if len(url) <= _CACHED_CHARS else _key(url)
    host, path, query = usual.groups("")
    if "%" in path:
        path = _ESCAPES.sub(lambda run: _unescaped(run[0], _PATH_SAFE), path)
    if "%" in query:
        query = _ESCAPES.sub(lambda run: _unescaped(run[0], _QUERY_SAFE), query)
    return f"https://{_without_www(host)}{path.rstrip('/')}{'?' if query else ''}{query}"


_USUAL_HOST = re.compile(r"https?://(?:www\.)*([a-z0-9.-]*[a-z0-9-])(?=[/?#]|\Z)")


def host_of(url: str) -> str | None:
    """The host without "www.", or None where that takes more than a look.

    Two addresses whose hosts are known and differ have different keys.
    """
    usual = _USUAL_HOST.match(url)
    return usual[1] if usual and usual[1] != "r.jina.ai" else None


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
    parts = http_address(url)
    if parts is None:
        return url
    host = _without_www(unicodedata.normalize("NFC", parts.hostname.rstrip(".")))
    host = f"[{host}]" if ":" in host else host
    default = parts.port in (None, 80 if parts.scheme == "http" else 443)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    path = _quoted(parts.path, _PATH_SAFE).rstrip("/")
    query = _quoted(parts.query, _QUERY_SAFE, keep="&=+;")
    return f"https://{user}{host}{'' if default else f':{parts.port}'}{path}{'?' if query else ''}{query}"


def _without_www(host: str) -> str:
    while host.startswith("www.") and "." in host[4:].rstrip("."):
        host = host[4:]
    return host


# Characters that may stand unescaped.  "/" may in both, but an escaped "%2F" in a path names another resource,
# and stays; in a query, where "&=+;" have a meaning that their escapes have not, the two are equal.
_PATH_SAFE = "!$'()*,;:@&=+"
_QUERY_SAFE = "/?!$'()*,:@"
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+|%")
_OCTETS = re.compile(rf"{_ESCAPES.pattern}|[^%]+")


def _quoted(text: str, safe: str, keep: str = "") -> str:
    """Decode escapes of unreserved and `safe` characters; "/" and those of `keep` stay as they were written."""

    def one(match: re.Match) -> str:
        run = match[0]
        return _unescaped(run, safe) if run[0] == "%" else quote(run, f"/{safe}{keep}", errors="surrogatepass")

    return _OCTETS.sub(one, text)


@functools.lru_cache(maxsize=4096)
def _unescaped(run: str, safe: str) -> str:
    """A run of escapes, or a "%" that begins none."""
    return quote(unquote_to_bytes(run), safe) if len(run) > 1 else "%25"
