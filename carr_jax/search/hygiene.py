"""What gives a benchmark's question away is withheld: pages that quote or retell it, hosts that keep data sets.

A policy that learns by searching the open web finds the question itself there, next to its answer.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from carr_jax.addresses import http_address

GRAM = 13  # words in a row that are no chance
_TOKEN = re.compile(r"[a-z0-9_]+|[\u4e00-\u9fff]")
_FEWEST_WORDS = 12  # words with a meaning, below which a retold question cannot be told from a page about it
_WINDOW = 2  # times the length of the question, in which it is looked for
_STEM = 6  # characters that tell a word from another, whatever its ending
_EMPTY_WORDS = frozenset(
    """a about after all also am an and any are as at be because been before being between both but by can could
    did do does during each for from had has have he her him his how i if in into is it its just may me
    more most my no not of on one only or other our out over own same she should so some such than that
    the their them then there these they this those through to too under until up was we were what when
    where which while who whom whose why will with would you your""".split()
)


@dataclass(frozen=True)
class HygieneRules:
    """`share` is how much of a question's words a stretch of a page holds that retells it, 0 to leave that out.

    `hosts` are withheld with all their subdomains.
    """

    share: float = 0.75
    hosts: tuple[str, ...] = ()


def words(text: str) -> list[str]:
    """Runs of letters a-z, digits and underscores, and single Chinese characters, in lower case."""
    return _TOKEN.findall(text.lower())


def quotes(question: str, text: str) -> bool:
    """The rule of the reference: any 13 words in a row in both; the whole of a shorter question as a substring.

    A question without words is quoted nowhere (the reference finds it everywhere).
    """
    asked, grams, firsts = _grams(question)
    said = words(text)
    if not grams:
        return bool(asked) and asked in " ".join(said)
    return any(w in firsts and tuple(said[i : i + GRAM]) in grams for i, w in enumerate(said))


@functools.lru_cache(maxsize=4096)
def _grams(question: str) -> tuple[str, frozenset[tuple[str, ...]], frozenset[str]]:
    """The words of a question, every 13 of them in a row, and the first of each 13."""
    asked = words(question)
    grams = frozenset(tuple(asked[i : i + GRAM]) for i in range(len(asked) - GRAM + 1))
    return " ".join(asked), grams, frozenset(gram[0] for gram in grams)


def retold_share(question: str, text: str) -> float:
    """How much of what a question says stands together in a text, in any order and with other endings.

    The largest share of the question's distinct meaningful words within a stretch of twice its length.  0 for a
    question of few such words: pages about its subject hold them all.
    """
    wanted, length = _meant(question)
    if len(wanted) < _FEWEST_WORDS:
        return 0.0
    places = [(i, stem) for i, word in enumerate(words(text)) if (stem := word[:_STEM]) in wanted]
    inside: Counter[str] = Counter()
    most = first = 0
    for place, stem in places:
        inside[stem] += 1
        while places[first][0] <= place - _WINDOW * length:
            inside[places[first][1]] -= 1
            if not inside[places[first][1]]:
                del inside[places[first][1]]
            first += 1
        most = max(most, len(inside))
    return most / len(wanted)


@functools.lru_cache(maxsize=4096)
def _meant(question: str) -> tuple[frozenset[str], int]:
    """The stems of a question's meaningful words, and its length in words."""
    asked = words(question)
    return frozenset(word[:_STEM] for word in asked if word not in _EMPTY_WORDS), len(asked)


def on_hosts(url: str, hosts: Sequence[str]) -> bool:
    """Whether an address lies on one of the hosts, or below it."""
    low = url.lower()
    if not any(name in low for name in hosts):  # most addresses: no need to take them apart
        return False
    parts = http_address(url)
    host = parts.hostname.rstrip(".") if parts else ""
    return any(host == name or host.endswith("." + name) for name in hosts)


def withheld(question: str, url: str, text: str, rules: HygieneRules) -> str:
    """Why this must not be shown to who answers `question`: "host", "quoted" or "retold"; "" when it may."""
    if on_hosts(url, rules.hosts):
        return "host"
    if not question.strip():
        return ""
    if quotes(question, f"{url} {text}"):
        return "quoted"
    return "retold" if rules.share and retold_share(question, text) >= rules.share else ""
