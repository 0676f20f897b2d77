"""Which part of a page a search result shows: the stretch that holds the rarest words of the query."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

_WORD = re.compile(r"[^ ]+")
_SENTENCE_START = re.compile(r"(?<=[.!?]) (?=\S)")

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Outline:
    """What a page is before any query: one line of `text`, its stretches, and where its terms stand.

    `spans` is int32 [stretches, 2].  The others are [occurrences] in the order of the text: the hash of a term,
    int64, and the start and end of the word that it is in, int32.  (Of a word longer than a stretch the part
    that a stretch shows counts as a word, too.)
    """

    text: str
    spans: np.ndarray
    terms: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def outline(text: str, size: int, terms: Callable[[str], Collection[str]]) -> Outline:
    """Of `text`, one line with single spaces, in stretches of `size` characters.

    `terms(word)` gives the index terms of a word.  A search shows ten pages of some ten thousand characters,
    again and again the same: the words of a page are looked at once.
    """
    spans = list(stretches(text, size))
    cut = [span for span in spans if span[1] < len(text) and text[span[1]] != " "]
    words = sorted([*(m.span() for m in _WORD.finditer(text)), *cut])
    found = [(hash(term), *span) for span in words for term in set(terms(text[slice(*span)]))]
    hashes, starts, ends = zip(*found, strict=True) if found else ((), (), ())
    return Outline(
        text,
        np.array(spans, np.int32).reshape(-1, 2),
        np.array(hashes, np.int64),
        np.array(starts, np.int32),
        np.array(ends, np.int32),
    )


def best_stretch(page: Outline, weights: Mapping[str, float]) -> str:
    """The stretch with the heaviest distinct terms; on a tie the first."""
    if not page.text:
        return ""
    total = np.zeros(len(page.spans))
    for term in sorted(weights):
        total += weights[term] * _hold(page, page.terms == hash(term))
    start, end = page.spans[np.argmax(total)]
    return page.text[start:end]


def _hold(page: Outline, these: np.ndarray) -> np.ndarray:
    """Whether each stretch holds one of these occurrences, bool [stretches]."""
    before = np.searchsorted(page.starts[these], page.spans[:, 0])  # occurrences that start too early
    until = np.searchsorted(page.ends[these], page.spans[:, 1], side="right")
    return until > before


def stretches(text: str, size: int) -> Iterator[Span]:
    """Spans of at most `size` characters that start at a sentence, or inside one that is longer.

    A stretch ends with its last whole sentence; inside a longer one at a word's end, about a quarter apart.
    """
    bounds = [0, *(m.end() for m in _SENTENCE_START.finditer(text)), len(text)] if text else [0]
    for k, start in enumerate(bounds[:-1]):
        last = bisect.bisect_right(bounds, start + size) - 1
        if last > k:
            yield start, _without_space(text, bounds[last])
        else:
            yield from _inside(text, start, bounds[k + 1], size)


def _inside(text: str, start: int, stop: int, size: int) -> Iterator[Span]:
    """Stretches of one sentence that is longer than `size`."""
    step = max(1, size // 4)
    while 0 <= start < stop:
        if stop - start <= size:
            yield start, _without_space(text, stop)
        else:
            space = text.rfind(" ", start, start + size + 1)
            yield start, space if space > start else start + size
        start = text.find(" ", start + step - 1, stop) + 1 or stop


def _without_space(text: str, end: int) -> int:
    return end - 1 if text[end - 1 : end] == " " else end
