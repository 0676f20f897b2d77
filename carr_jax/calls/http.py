"""One HTTP exchange with a service: limits kept, redirects not followed, failures typed."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from carr_jax.calls.errors import CallError

_CONNECT_S = 20.0


@dataclass(frozen=True)
class Answer:
    """What came back, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def open_http() -> aiohttp.ClientSession:
    """Connections to services: certificates verified, no system-wide proxy, no cookies, no queue of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),  # shorter than servers' (TS-17)
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


async def exchange(
    http: aiohttp.ClientSession,
    method: str,
    url: Any,
    *,
    name: object,
    seconds: float,
    most_bytes: int,
    **options: Any,
) -> Answer:
    """The answer of a service, within `seconds` and `most_bytes`.  Raises CallError; `name` stands in its text.

    Redirects are not followed: a key would go with them.
    """
    try:
        async with (
            asyncio.timeout(seconds),
            http.request(method, url, allow_redirects=False, **options) as answer,
        ):
            body = await _read(answer, name, most_bytes)
            return Answer(answer.status, answer.headers, body)
    except TimeoutError as error:
        raise CallError("timeout", f"{name}: no answer in {seconds:g} s", retry=True, billed=True) from error
    except aiohttp.ClientConnectorError as error:
        if _speaks_another_tls(error):
            raise CallError("tls", f"{name}: {error}") from error
        raise CallError("unreachable", f"{name}: {error}", retry=True) from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise CallError("tls", f"{name}: {error}") from error
    except (aiohttp.ClientError, OSError) as error:
        text = f"{name}: {error or type(error).__name__}"
        raise CallError("broken", text, retry=True, billed=True) from error


def _speaks_another_tls(error: aiohttp.ClientConnectorError) -> bool:
    """Whether the two could not agree on TLS, as with a server that has none: that stays so.

    A connection that was only cut off during the handshake may be made later.
    """
    return isinstance(error.os_error, ssl.SSLError) and not isinstance(error.os_error, ssl.SSLEOFError)


async def _read(answer: aiohttp.ClientResponse, name: object, most_bytes: int) -> bytes:
    """The body, up to a limit.  Raises CallError beyond."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > most_bytes:
            text = f"{name}: an answer of more than {most_bytes / (1 << 20):g} MiB"
            raise CallError("endless", text, billed=True)
    return bytes(body)


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header, which holds seconds or an HTTP date; `now` is Unix time.

    None for a header that is absent or says neither.
    """
    if header is None:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(header)
        return max(seconds, 0.0) if seconds < float("inf") else None
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(email.utils.parsedate_to_datetime(header).timestamp() - now, 0.0)
    return None
