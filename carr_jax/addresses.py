"""What counts as an address on the web, for everything that reads, cites or calls one."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def http_address(url: str) -> SplitResult | None:
    """`urllib.parse.urlsplit`, or None for what is not an http(s) URL with a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None
