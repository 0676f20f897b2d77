"""Which part of a page a search result shows: the stretch that holds the rarest words of the query."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Collection, Iterator, Mapping

_SENTENCE_START = re.compile(r"(?<=[.!?]) (?=\S)")

Span = tuple[int, int]


def best_stretch(
    text: str, size: int, weights: Mapping[str, float], terms: Callable[[str], Collection[str]]
) -> str:
    """The stretch of at most `size` characters with the heaviest distinct terms; on a tie the first.

    `text` is one line with single spaces, `terms(word)` gives the index terms in a word.  Ten results of ten
    thousand characters are looked through in each search, so words are looked at, not stretches.
    """
    found = weighty_words(text, weights, terms)
    starts, ends = [start for start, _, _ in found], [end for _, end, _ in found]
    best, most, first = None, 0.0, None
    for start, end in stretches(text, size):
        first = first or (start, end)
        if end < len(text) and text[end] != " ":  # a word that is longer than a stretch
            held = [weights.keys() & set(terms(text[start:end]))]
        else:
            inside = slice(bisect.bisect_left(starts, start), bisect.bisect_right(ends, end))
            held = [terms_of for _, _, terms_of in found[inside]]
        weight = sum(weights[term] for term in sorted(set().union(*held))) if held else 0.0
        if weight > most:
            best, most = (start, end), weight
    start, end = best or first or (0, 0)
    return text[start:end]


def weighty_words(
    text: str, weights: Mapping[str, float], terms: Callable[[str], Collection[str]]
) -> list[tuple[int, int, set[str]]]:
    """(start, end, weighted terms) of each word that has any, in order."""
    of = {word: weights.keys() & set(terms(word)) for word in set(text.split(" "))}
    wanted = {word: held for word, held in of.items() if held}
    if not wanted:
        return []
    pattern = re.compile(rf"(?<![^ ])(?:{'|'.join(map(re.escape, wanted))})(?![^ ])")
    return [(m.start(), m.end(), wanted[m[0]]) for m in pattern.finditer(text)]


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
