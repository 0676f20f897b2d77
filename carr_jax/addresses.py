"""What counts as an address on the web, and when two spellings of one mean the same page.

For everything that reads, cites or calls one.  All functions take linear time, whatever was written.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from urllib.parse import SplitResult, quote, unquote_to_bytes, urlsplit


def http_address(url: str) -> SplitResult | None:
    """`urllib.parse.urlsplit`, or None for what is not an http(s) URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


# ------------------------------------------------------------------------------------- what a policy asks for


def asked_address(url: str) -> str:
    """The address that a policy means: without the prefixes of readers, with a scheme."""
    url = re.sub(
        r"^(?:(?:https?://r\.jina\.ai/|view-source:)(?=[\w-]+:))+", "", url.strip(), flags=re.IGNORECASE
    )
    return url if re.match(r"[a-z][a-z0-9+.-]*:", url, re.IGNORECASE) or "." not in url else f"https://{url}"


def asked_keys(url: str) -> tuple[str, ...]:
    """The keys under which the page that a policy means may stand: as it is written, and as an address.

    Names of pages that are no addresses, such as the numbers of a dump, stand under themselves.
    """
    return tuple(dict.fromkeys((canonical_url(url), canonical_url(asked_address(url)))))


# ----------------------------------------------------------------------------------------------- canonical key


_READER = re.compile(
    r"(?:view-source:|https?://r\.jina\.ai(?::\d*)?/(?=(?:view-source:|https?://)))+", re.IGNORECASE
)
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
