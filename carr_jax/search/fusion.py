"""Several rankings become one: reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_K = 60  # the paper's: how little the very first places weigh


def fused(rankings: Sequence[Sequence[int]]) -> list[tuple[int, float]]:
    """(item, score) of all items, best first: the score is the sum of 1 / (60 + rank), ranks from 1.

    Of equal scores, what stands in an earlier ranking, or there at an earlier place, comes first.
    """
    scores: Counter[int] = Counter()
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] += 1 / (_K + rank)
    return sorted(scores.items(), key=lambda pair: -pair[1])  # stable: a Counter keeps the order of arrival
