"""Documents of the open web, fetched by us: every hop checked, nothing of ours sent along, limits kept.

No cookies, no referer, no proxy of the machine, no key; certificates are verified.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from dataclasses import dataclass
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from carr_jax.calls.breaker import Breaker
from carr_jax.calls.errors import CallError
from carr_jax.calls.http import retry_after
from carr_jax.calls.patience import Patience, Timing
from carr_jax.search.browser import Missing, Outage
from carr_jax.search.inflate import Damaged, Inflater, TooLarge
from carr_jax.search.robots import Robots
from carr_jax.search.safety import CheckedResolver, Lookup, Refused, Rules, checked, system_lookup
from carr_jax.search.said import missing, status_missing

_REDIRECTS = (301, 302, 303, 307, 308)
_AGAIN = (408, 429, 500, 502, 503, 504)  # statuses that may pass (TS-10)
_TRIES = 2
_LONGEST_REST_S = 10.0  # a site that asks for more is not waited for
_CONNECT_S = 10.0
_OURS = ("scheme", "userinfo", "port", "private")  # refused without a word to anybody


@dataclass(frozen=True)
class FetchOptions:
    """Limits of fetching.  `page_s` seconds are for all hops of a page together, from its first connection."""

    page_s: float = 30.0
    page_bytes: int = 5_000_000  # of a document, as sent and as unpacked
    redirects: int = 8
    concurrency: int = 64
    per_host: int = 2  # pages of one host at a time
    user_agent: str = "carr_jax"
    robots: bool = True  # leave what a site's robots.txt asks robots to leave
    outage_s: float = 600.0  # how long is waited while no site at all can be reached


@dataclass(frozen=True)
class Document:
    """What a site sent: `url` is the address that answered, `content_type` what it says the body is."""

    url: str
    content_type: str
    body: bytes


class _Again(Exception):
    """A try failed in a way that may pass; `answer` is what to say if it does not."""

    def __init__(self, answer: Missing, rest_s: float = 0.0, site_spoke: bool = False) -> None:
        self.answer, self.rest_s, self.site_spoke = answer, rest_s, site_spoke


class Fetcher:
    """Fetches what `rules` allow; open as an async context.  `lookup` finds the addresses of a name."""

    def __init__(
        self,
        options: FetchOptions = FetchOptions(),
        rules: Rules = Rules(),
        lookup: Lookup = system_lookup,
        timing: Timing = Timing(),
    ) -> None:
        self._options, self._rules, self._lookup, self._timing = options, rules, lookup, timing
        self._all = asyncio.Semaphore(options.concurrency)
        self._hosts: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        self._breaker = Breaker(Patience(outage_s=options.outage_s), timing)
        self._unreachable: set[str] = set()  # hosts, since one was reached
        self._robots = Robots(options.user_agent, self._robots_txt, timing.clock)

    async def __aenter__(self) -> Fetcher:
        connector = aiohttp.TCPConnector(
            limit=0,
            use_dns_cache=False,
            keepalive_timeout=3.0,  # shorter than servers' (TS-17)
            resolver=CheckedResolver(self._rules, self._lookup),
        )
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            headers={
                "User-Agent": self._options.user_agent,
                "Accept": "text/html, application/xhtml+xml, text/plain, application/pdf, */*;q=0.5",
                "Accept-Encoding": "gzip, deflate",
            },
            auto_decompress=False,  # we count what comes out
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def fetch(self, url: str) -> Document:
        """The document at an address, behind its redirects.  Raises Missing, and Outage."""
        tries = 0
        while True:
            try:
                async with self._turn(url), self._breaker.passed():
                    document = await self._timed(url)
            except CallError as error:  # the outage lasts
                raise Outage("network") from error
            except _Again as failure:
                self._take_note(url, failure)
                tries += not self._breaker.is_open
                if tries >= _TRIES or failure.rest_s > _LONGEST_REST_S:
                    raise failure.answer from failure
                await self._timing.sleep(failure.rest_s + self._timing.draw())
            else:
                self._reached()
                return document

    @contextlib.asynccontextmanager
    async def _turn(self, url: str):
        """A place among all pages, and among those of a host; no time limit runs yet."""
        host = _host(url)
        slots = self._hosts.setdefault(host, asyncio.Semaphore(self._options.per_host))
        async with slots, self._all:
            yield

    def _take_note(self, url: str, failure: _Again) -> None:
        """One host that is away says nothing of the network; many of them, and none that is there, do."""
        if failure.site_spoke:
            self._reached()
        elif _host(url) not in self._unreachable or self._breaker.is_open:
            self._unreachable.add(_host(url))
            self._breaker.failed(CallError("unreachable", _host(url), retry=True))

    def _reached(self) -> None:
        self._unreachable.clear()
        self._breaker.answered()

    async def _timed(self, url: str) -> Document:
        try:
            async with asyncio.timeout(self._options.page_s):
                return await self._followed(url, self._options.robots)
        except TimeoutError as error:
            raise missing("timeout") from error
        except Missing as answer:
            if answer.reason not in _OURS:
                self._reached()
            raise

    async def _followed(self, url: str, robots: bool) -> Document:
        """Redirects are followed by hand, each hop checked like the first (TS-01)."""
        for _ in range(self._options.redirects + 1):
            address = _address(url, self._rules)
            if robots and not await self._robots.allow(address):
                raise missing("robots")
            answer = await self._hop(address, url)
            if isinstance(answer, Document):
                return answer
            url = answer
        raise missing("redirects")

    async def _robots_txt(self, url: str) -> bytes:
        """What a site says to robots; within the time and the turn of the page for which it is asked."""
        return (await self._followed(url, robots=False)).body

    async def _hop(self, address: URL, url: str) -> Document | str:
        """The document at exactly this address, or the address that it points to."""
        try:
            async with self._http.get(address, allow_redirects=False) as answer:
                if answer.status in _REDIRECTS and (target := answer.headers.get("Location")):
                    return urljoin(url, target.strip())
                if answer.status != 200:
                    raise self._no_page(answer)
                body = await _read(answer, self._options.page_bytes)
                return Document(url.partition("#")[0], answer.headers.get("Content-Type", ""), body)
        except Refused as refusal:
            raise missing(refusal.reason) from refusal
        except aiohttp.ClientConnectorDNSError as error:
            raise _unresolved(error) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise missing("tls") from error
        except aiohttp.ClientConnectorError as error:
            raise _Again(missing("unreachable")) from error
        except (aiohttp.ClientPayloadError, Damaged) as error:
            raise _Again(missing("broken"), site_spoke=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _Again(missing("broken")) from error

    def _no_page(self, answer: aiohttp.ClientResponse) -> Exception:
        said = status_missing(answer.status)
        if answer.status not in _AGAIN:
            return said
        rest = retry_after(answer.headers.get("Retry-After"), self._timing.now())
        return _Again(said, rest or 0.0, site_spoke=True)


def _host(url: str) -> str:
    try:
        return URL(url).host or ""
    except ValueError:
        return ""


def _address(url: str, rules: Rules) -> URL:
    """What is checked is what is connected to: both are read from one parsed address.  Raises Missing."""
    try:
        address = URL(url.strip()).with_fragment(None)
        parts = checked(str(address), rules)
    except ValueError as error:
        raise missing("scheme") from error
    except Refused as refusal:
        raise missing(refusal.reason) from refusal
    if (parts.scheme, parts.hostname) != (address.scheme, address.raw_host):
        raise missing("scheme")  # two readers of one address must agree
    return address


def _unresolved(error: aiohttp.ClientConnectorDNSError) -> Exception:
    """A name that does not exist, or a resolver that cannot say."""
    cause = error.os_error
    unknown = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
    if isinstance(cause, socket.gaierror) and cause.errno in unknown:
        return missing("dns")
    return _Again(missing("dns"))


async def _read(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The unpacked body, whose limit also holds for what is packed.  Raises Missing, and Damaged."""
    try:
        inflater = Inflater(answer.headers.get("Content-Encoding", ""), most)
        sent = 0
        async for chunk in answer.content.iter_chunked(1 << 16):
            sent += len(chunk)
            if sent > most:
                raise TooLarge
            inflater.feed(chunk)
        return inflater.done()
    except TooLarge as error:
        raise missing("too_large") from error
    except LookupError as error:
        raise missing("encoding") from error
