"""A search API and a reader of ours, with every fault: real HTTP on loopback.

    async with WebStub() as stub: ... stub.script = ["storm", "http_500"] ... stub.calls ...

Each call takes the next fault of `script`, then there are none.  `calls` are (path, what was asked, key).
"""

import asyncio
import json

from aiohttp import web

TEXT = "Ada Holm was born in Kemi. She built the bridge. " * 30


class WebStub:
    def __init__(self, keys=("good",)):
        self.keys, self.script, self.calls = keys, [], []
        self.pause_s = 0.0
        self.retry_after = "0"
        self.results = [
            {"title": f"Page {n}", "link": f"https://site{n}.test/a", "snippet": f"About\n{n}."}
            for n in range(20)
        ]
        self.pages = {}  # by address: (status, body), else a page of the usual layout
        self.in_flight = self.most_in_flight = 0
        self.followed = 0

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/search", self.serper)
        app.router.add_get("/search.json", self.serpapi)
        app.router.add_get("/reader/{url:.*}", self.reader)
        app.router.add_route("*", "/elsewhere", self.elsewhere)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error):
        await self.runner.cleanup()

    async def elsewhere(self, request):
        self.followed += 1
        return web.json_response({"organic": []})

    async def serper(self, request):
        asked = await request.json()
        key = request.headers.get("X-API-KEY", "")
        answer = {"organic": self.results[: asked["num"]]}
        return await self.answer(request, (asked["q"], asked["num"]), key, json.dumps(answer))

    async def serpapi(self, request):
        q = request.query
        answer = {"organic_results": self.results[: int(q["num"])]}
        return await self.answer(request, (q["q"], int(q["num"])), q["api_key"], json.dumps(answer))

    async def reader(self, request):
        url = request.path_qs.removeprefix("/reader/")
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        usual = f"Title: A page\n\nURL Source: {url}\n\nMarkdown Content:\n{TEXT}"
        status, body = self.pages.get(url, (200, usual))
        return await self.answer(request, url, key, body, status)

    async def answer(self, request, asked, key, body, status=200):
        self.calls.append((request.path.split("/")[1], asked, key))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.pause_s)
            fault = self.script.pop(0) if self.script else ""
            if key not in self.keys:
                return web.Response(status=401, text=f"the key {key} is not known")
            return await self._faulty(request, fault, body, status)
        finally:
            self.in_flight -= 1

    async def _faulty(self, request, fault, body, status):
        if fault.startswith("http_"):
            return web.Response(status=int(fault[5:]), text="an error page")
        if fault == "storm":
            return web.Response(status=429, headers={"Retry-After": self.retry_after})
        if fault == "hang":
            await asyncio.sleep(60)
        if fault == "reset":
            request.transport.abort()
        if fault == "redirect":
            return web.Response(status=302, headers={"Location": "/elsewhere"})
        body = {"truncated": body[: len(body) // 2], "empty": "", "list": "[]", "html": "<html>"}.get(
            fault, body
        )
        return web.Response(status=status, text=body)
