"""A web server that misbehaves in every way that was ever reported, on loopback: real HTTP, no mocks.

    async with Naughty() as site: ... site.url("/page") ... site.asked ...

`asked` are the paths that came, with their headers; `paths` leaves out those of /robots.txt.
"""

import asyncio
import gzip
import zlib

from aiohttp import web

WORDS = "The river of the town is cold, and the bridge was built by Ada Holm in Kemi. " * 8
HEAD = "<!doctype html><html><head><title>A page</title></head>"
PAGE = f"{HEAD}<body><article><p>{WORDS}</p></article></body></html>"


class Naughty:
    def __init__(self):
        self.asked = []
        self.storm = 0  # how many calls of /storm are answered with 429
        self.retry_after = "0"
        self.left = {}  # how often a path still fails
        self.robots = (
            None  # what /robots.txt says: a text, the status that it is answered with, or None for 404
        )

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/{name:.*}", self.answer)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error):
        await self.runner.cleanup()

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"

    def paths(self):
        return [path for path, _ in self.asked if path != "/robots.txt"]

    async def answer(self, request):
        self.asked.append((request.path_qs, dict(request.headers)))
        if request.path == "/robots.txt" and self.robots is not None:
            if isinstance(self.robots, int):
                return web.Response(status=self.robots, headers={"Location": "/to?u=/robots.txt"})
            return web.Response(text=self.robots)
        name, _, argument = request.match_info["name"].partition("/")
        return await getattr(self, f"do_{name}", self.do_nothing)(request, argument)

    async def do_nothing(self, request, argument):
        return web.Response(status=404, text="no such page, but a long text that says so")

    async def do_page(self, request, argument):
        return web.Response(text=PAGE, content_type="text/html")

    async def do_status(self, request, argument):
        return web.Response(status=int(argument), text="an error page that looks like text")

    async def do_to(self, request, argument):
        """Redirects to what the query says."""
        status = int(argument or 302)
        return web.Response(status=status, headers={"Location": request.query["u"], "Set-Cookie": "a=b"})

    async def do_loop(self, request, argument):
        return web.Response(status=302, headers={"Location": f"/loop/{int(argument or 0) + 1}"})

    async def do_nowhere(self, request, argument):
        return web.Response(status=302)

    async def do_storm(self, request, argument):
        if self.storm:
            self.storm -= 1
            return web.Response(status=429, headers={"Retry-After": self.retry_after})
        return await self.do_page(request, argument)

    async def do_slow(self, request, argument):
        """A byte now and then, for ever."""
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        while True:
            await response.write(b"a")
            await asyncio.sleep(0.02)

    async def do_silent(self, request, argument):
        await asyncio.sleep(60)

    async def do_endless(self, request, argument):
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        while True:
            await response.write(b"word " * 10_000)

    async def do_bomb(self, request, argument):
        body = gzip.compress(bytes(100_000_000), 9)
        return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/html"})

    async def do_gzip(self, request, argument):
        body = gzip.compress(PAGE.encode())
        body = body[: len(body) // 2] if argument == "cut" else body
        return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/html"})

    async def do_brotli(self, request, argument):
        return web.Response(body=b"\x0b\x02", headers={"Content-Encoding": "br"})

    async def do_deflate(self, request, argument):
        return web.Response(body=zlib.compress(PAGE.encode()), headers={"Content-Encoding": "deflate"})

    async def do_cut(self, request, argument):
        """Promises more than it sends."""
        response = web.StreamResponse(headers={"Content-Length": "10000"})
        await response.prepare(request)
        await response.write(b"half")
        request.transport.close()
        return response

    async def do_reset(self, request, argument):
        """Closes the connection without an answer, as often as `left` says."""
        if self.left.get("reset", 0):
            self.left["reset"] -= 1
            request.transport.abort()
            return web.Response()
        return await self.do_page(request, argument)

    async def do_binary(self, request, argument):
        return web.Response(body=b"\x89PNG\r\n\x1a\n" + bytes(500), content_type="text/html")

    async def do_empty(self, request, argument):
        return web.Response(body=b"", content_type="text/html")

    async def do_latin(self, request, argument):
        return web.Response(
            body="<html><body><p>café</p></body></html>".encode("latin-1"),
            headers={"Content-Type": "text/html; charset=latin-1"},
        )
