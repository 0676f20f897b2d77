"""Which part of a page a search result shows: the stretch that holds the rarest words of the query.

A page is taken apart once and then looked through for one query after another: siblings of a group find the
same pages, and ten results of ten thousand characters are looked through in each search.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np

_SENTENCE_ENDS = (". ", "! ", "? ")

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Outline:
    """A text and the terms of its stretches, as numbers of 64 bits that are equal for equal terms.

    Stretch i is `text[slice(*spans[i])]`, and holds the terms `terms[slice(*held[i])]`.
    """

    text: str
    spans: list[Span]
    held: np.ndarray  # int64 [stretches, 2]
    terms: np.ndarray  # int64 [terms]

    def best_stretch(self, weights: Mapping[int, float]) -> str:
        """The stretch with the heaviest distinct terms, by their numbers; on a tie the first."""
        if not self.spans:
            return ""
        best = 0
        if weights:
            found = self.terms == np.fromiter(weights, np.int64)[:, None]
            before = np.zeros((len(weights), len(self.terms) + 1), np.int32)
            np.cumsum(found, axis=1, out=before[:, 1:])
            inside = before.take(self.held[:, 1], axis=1) > before.take(self.held[:, 0], axis=1)
            weighed = np.where(inside, np.fromiter(weights.values(), float)[:, None], 0.0)
            best = int(np.argmax(weighed.sum(axis=0)))
        return self.text[slice(*self.spans[best])]


def outlined(text: str, size: int, terms: Callable[[str], Collection[str]]) -> Outline:
    """Takes a text, one line with single spaces, apart into stretches of at most `size` characters.

    `terms(part)` gives the index terms in a part of it; no part is looked at twice, though stretches overlap.
    """
    spans = list(stretches(text, size))
    cuts = sorted({*chain.from_iterable(spans)})
    parts = [terms(text[start:end]) for start, end in pairwise(cuts)]
    upto = dict(zip(cuts, accumulate(map(len, parts), initial=0), strict=False))
    held = np.fromiter(map(upto.__getitem__, chain.from_iterable(spans)), np.int64, 2 * len(spans))
    numbers = np.fromiter(map(hash, chain.from_iterable(parts)), np.int64, upto[cuts[-1]] if cuts else 0)
    return Outline(text, spans, held.reshape(-1, 2), numbers)


def everywhere(text: str, part: str) -> Iterator[int]:
    """All places of `part`; much quicker than a regular expression where it is rare."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def stretches(text: str, size: int) -> Iterator[Span]:
    """Spans of at most `size` characters that start at a sentence, or inside one that is longer.

    A stretch ends with its last whole sentence; inside a longer one at a word's end, about a quarter apart.
    """
    begin = sorted(at + 2 for end in _SENTENCE_ENDS for at in everywhere(text, end))
    bounds = [0, *begin, len(text)] if text else [0]
    for k, start in enumerate(bounds[:-1]):
        last = bisect.bisect_right(bounds, start + size) - 1
        if last > k:
            yield start, _without_space(text, bounds[last])
        else:
            yield from _inside(text, start, bounds[k + 1], size)


def _inside(text: str, start: int, stop: int, size: int) -> Iterator[Span]:
    """Stretches of one sentence that is longer than `size`; no word that fits is left out."""
    step = max(1, size // 4)
    while start < stop:
        ahead = text.find(" ", start + step - 1, stop) + 1 or stop
        if stop - start <= size:
            yield start, _without_space(text, stop)
        elif (space := text.rfind(" ", start, start + size + 1)) > start:
            yield start, space
            ahead = min(ahead, space + 1)
        else:
            yield start, start + size
        start = ahead


def _without_space(text: str, end: int) -> int:
    return end - 1 if text[end - 1 : end] == " " else end
