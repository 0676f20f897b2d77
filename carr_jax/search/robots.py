"""What a site asks of robots: robots.txt as RFC 9309 has it, asked for once a day.

Nothing is read of it but who may fetch what.  "Crawl-delay" is no part of the standard; that our visits are few
is seen to by `FetchOptions.per_host`.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from yarl import URL

from carr_jax.calls.flights import Flights
from carr_jax.search.browser import Missing

_KEPT_S = 86_400.0
_SITES = 10_000  # that are remembered
_READ = 512_000  # bytes of a file that count
_ABSENT = re.compile(r"http_(?:3|4(?!08|29))\d\d|redirects")  # no such file: everything may be fetched
_LINE = re.compile(r"\s*(user-agent|allow|disallow)\s*:\s*([^\s#]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    """Paths that begin with `path`, in which "*" is anything and "$" at the end is the end."""

    path: str
    allows: bool

    def covers(self, path: str) -> bool:
        """Whether this is about `path`; takes time in proportion to both."""
        first, *pieces = self.path.removesuffix("$").split("*")
        if not path.startswith(first):
            return False
        place = len(first)
        last = pieces.pop() if pieces and self.path.endswith("$") else None
        for piece in pieces:
            if (found := path.find(piece, place)) < 0:
                return False
            place = found + len(piece)
        if last is not None:
            return len(path) - len(last) >= place and path.endswith(last)
        return not self.path.endswith("$") or place == len(path)


def rules_for(agent: str, text: str) -> tuple[Rule, ...]:
    """What a robots.txt says to `agent`: of all groups that name it, else of those for everybody.

    A group names robots by the first word of what they call themselves, in any case.
    """
    groups: dict[str, list[Rule]] = {}
    named: list[str] = []
    in_rules = True
    for key, value in ((m[1].lower(), m[2]) for line in text.splitlines() if (m := _LINE.match(line))):
        if key == "user-agent":
            named = [value.lower()] if in_rules else [*named, value.lower()]
            groups.setdefault(value.lower(), [])
        elif value:
            for name in named:
                groups[name].append(Rule(_written(value), key == "allow"))
        in_rules = key != "user-agent"
    return tuple(groups.get(_word(agent), groups.get("*", ())))


def allowed(rules: tuple[Rule, ...], path: str) -> bool:
    """Whether the longest rule for a path allows it; where two are as long, the one that does."""
    path = _written(path)
    covering = [(len(rule.path), rule.allows) for rule in rules if rule.covers(path)]
    return max(covering, default=(0, True))[1]


class Robots:
    """Asks sites for their rules with `read`, which gives the bytes at an address and raises Missing.

    `agent` is what we call ourselves, `clock` counts seconds.
    """

    def __init__(self, agent: str, read: Callable[[str], Awaitable[bytes]], clock: Callable[[], float]) -> None:
        self._agent, self._read, self._clock = agent, read, clock
        self._flights: Flights[tuple[Rule, ...]] = Flights()
        self._sites: OrderedDict[str, tuple[float, tuple[Rule, ...]]] = OrderedDict()

    async def allow(self, address: URL) -> bool:
        """Whether a page may be fetched.  Raises what `read` does when the site does not say."""
        site = str(address.origin())
        until, rules = self._sites.get(site, (0.0, ()))
        if until <= self._clock():
            rules, _ = await self._flights.join(site, lambda: self._asked(site))
        return allowed(rules, address.raw_path_qs)

    async def _asked(self, site: str) -> tuple[Rule, ...]:
        try:
            text = (await self._read(f"{site}/robots.txt"))[:_READ].decode(errors="replace")
            rules = await asyncio.to_thread(rules_for, self._agent, text)
        except Missing as answer:
            if not _ABSENT.fullmatch(answer.reason):
                raise
            rules = ()
        self._sites[site] = (self._clock() + _KEPT_S, rules)
        if len(self._sites) > _SITES:
            self._sites.popitem(last=False)
        return rules


def _word(agent: str) -> str:
    found = re.match(r"[a-z_-]+", agent.lower())
    return found[0] if found else "*"


def _written(path: str) -> str:
    """A path with its escapes as they need be, so that two spellings compare equal."""
    return re.sub(r"(?:%[0-9A-Fa-f]{2})+|[^%]+|%", lambda m: _piece(m[0]), path)


def _piece(text: str) -> str:
    if text.startswith("%") and len(text) > 1:
        return quote(unquote_to_bytes(text), "")
    return quote(text, "/?!$'()*,;:@&=+#[]~", errors="replace") if text != "%" else "%25"
