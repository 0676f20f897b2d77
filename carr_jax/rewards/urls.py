"""Addresses in running text: where they begin and end, however they are written.

All functions take linear time, whatever a policy or a page wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

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
