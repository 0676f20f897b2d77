"""JSON to a server of ours and back: repeated when that may help, with an Outage when it does not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from carr_jax.search.browser import Outage

_LARGEST = 64 << 20  # bytes of an answer
_CONNECT_S = 10.0
_PAUSE_S = 0.25  # before the second attempt; twice as long before each further one
_AGAIN = (408, 429)  # beside all of 500 and above (TS-10)


class Poster:
    """Posts JSON to one address.  No redirect is followed and no proxy of the system is used (TS-18)."""

    def __init__(self, url: str, token: str = "", request_s: float = 60.0, attempts: int = 4) -> None:
        self.url, self._request_s, self._attempts = url, request_s, attempts
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def post(self, value: Any) -> Any:
        """The JSON of the answer.  Raises Outage with what went wrong in the last attempt."""
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(_PAUSE_S * 2 ** (attempt - 1))
            try:
                async with asyncio.timeout(self._request_s):
                    status, raw = await self._once(value)
            except TimeoutError:
                reason = "timeout"
                continue
            except (aiohttp.ClientError, OSError):
                reason = "unreachable"
                continue
            reason = f"http_{status}"
            if status == 200:
                return _parsed(raw)
            if status < 500 and status not in _AGAIN:
                break
        raise Outage(reason)

    async def _once(self, value: Any) -> tuple[int, bytes]:
        """A connection of its own: none is found closed by the other side (TS-17), and none is left open."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as http,
            http.post(self.url, json=value, headers=self._headers, allow_redirects=False) as answer,
        ):
            return answer.status, await _read(answer)


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > _LARGEST:
            raise Outage("endless")
    return bytes(body)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Outage("bad_reply") from None
