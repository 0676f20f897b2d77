"""Search engines behind an API, Serper and SerpApi.  What they answer is written by strangers, and read so."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from carr_jax.addresses import host_of, http_address
from carr_jax.calls.errors import CallError
from carr_jax.calls.http import Answer
from carr_jax.search.browser import NO_RESULTS, Hit, Missing, Outage
from carr_jax.search.extract import cleaned
from carr_jax.search.service import Call, Service

ADDRESSES = {
    "serper": "https://google.serper.dev/search",
    "serpapi": "https://serpapi.com/search.json",
}
_MOST_CHARS = 2_000  # of an address, a title or a snippet
_NOTHING_FOUND = "hasn't returned any results"


class Searcher:
    """Asks `service`, which speaks as `provider` (a key of ADDRESSES) does."""

    def __init__(self, service: Service, provider: str) -> None:
        self._service, self._provider = service, provider

    async def search(self, query: str, num: int) -> list[Hit]:
        """At most `num` results; none at all is an answer.  Raises Missing, and Outage."""
        requests: dict[str, Callable[[str], Call]] = {"serper": self._serper, "serpapi": self._serpapi}

        def request(key: str) -> Call:
            return requests[self._provider](key, query, num)

        try:
            return (await self._service.call("search", request, read_results))[:num]
        except CallError as error:
            if error.kind == "refused":  # this query, and no other
                raise Missing(NO_RESULTS, "refused") from error
            raise Outage(error.kind) from error

    def _serper(self, key: str, query: str, num: int) -> Call:
        return Call("POST", self._service.address.url, {"X-API-KEY": key}, {"json": {"q": query, "num": num}})

    def _serpapi(self, key: str, query: str, num: int) -> Call:
        values = {"q": query, "num": str(num), "engine": "google", "api_key": key}
        return Call("GET", self._service.address.url, {}, {"params": values})


def read_results(answer: Answer) -> list[Hit]:
    """The organic results of either API; rows that are none are left out.  Raises ValueError."""
    reply = json.loads(answer.body)
    if not isinstance(reply, dict):
        raise ValueError("no object")
    rows = reply.get("organic", reply.get("organic_results", []))
    if not isinstance(rows, list):
        raise ValueError("no list of results")
    if not rows and reply.get("error") and _NOTHING_FOUND not in str(reply["error"]):
        raise ValueError("an error instead of results")
    return [hit for row in rows if isinstance(row, dict) and (hit := _hit(row))]


def _hit(row: dict[str, Any]) -> Hit | None:
    url = _line(row.get("link"))
    if not (host_of(url) or http_address(url)):
        return None
    return Hit(url, _line(row.get("title")), _line(row.get("snippet")), _line(row.get("date")))


def _line(value: Any) -> str:
    return " ".join(cleaned(value[: 4 * _MOST_CHARS]).split())[:_MOST_CHARS] if isinstance(value, str) else ""
