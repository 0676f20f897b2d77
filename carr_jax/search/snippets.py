"""Which part of a page a search result shows: the stretch that holds the rarest words of the query."""

from __future__ import annotations

import bisect
import functools
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
    """(start, end, weighted terms) of each word that has any, in order.

    Most words of a page are in no query, and many are rare ones, whose terms nobody remembers: only words that
    begin as a term does are looked at.
    """
    if not weights:
        return []
    held_by: dict[str, set[str]] = {}
    found: list[tuple[int, int, set[str]]] = []
    end = -1
    for match in _beginnings(frozenset(weights)).finditer(text):
        if match.start() < end:
            continue
        start, end = text.rfind(" ", 0, match.start()) + 1, text.find(" ", match.start())
        end = len(text) if end < 0 else end
        word = text[start:end]
        if (held := held_by.get(word)) is None:
            held = held_by[word] = {term for term in terms(word) if term in weights}
        if held:
            found.append((start, end, held))
    return found


@functools.lru_cache(256)
def _beginnings(terms: frozenset[str]) -> re.Pattern[str]:
    """Where a word may begin whose index term is one of these.

    English stemming keeps the first two letters, but for "dying" and its like, which become "die"; what is
    not ASCII may be folded into anything.
    """
    starts = {"".join(map(_either, term[:2])) for term in terms}
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(sorted(starts))})|[^\x00-\x7f]")


def _either(letter: str) -> str:
    """A letter in both cases, and y for i; compiles quicker than a pattern that ignores case."""
    return "[iIyY]" if letter in "iy" else f"[{letter}{letter.upper()}]" if letter.isalpha() else letter


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
