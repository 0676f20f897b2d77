"""The HTTP face of an SGLang server that computes nothing: turns are written beforehand and arrive late.

    python benchmarks/pretended_server.py FILE.json      prints its port

The file says what it samples: {"stories": [[[ids], ...], ...], "seconds": mean of a turn, "context": tokens,
"seed": 0}.  Each turn of an episode is the next of its story; the stories go round.  It reads of a request only
what it needs, so that it never is what a measurement waits for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

from aiohttp import web

_RID = re.compile(rb'"rid": ?"[^":]*:([^"]+)"')


class PretendedServer:
    """`script` is the content of the file."""

    def __init__(self, script: dict) -> None:
        self.script, self.turns, self.stories = script, Counter(), itertools.cycle(script["stories"])
        self.story: dict[bytes, list[list[int]]] = {}
        self.random = random.Random(script["seed"])
        self.weights = "default"

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1 << 28)
        plain = "abort_request pause_generation continue_generation flush_cache".split()
        application.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/update_weights_from_disk", self.update),
                web.get("/model_info", self.model),
                web.get("/server_info", self.server),
                *(web.post(f"/{name}", self.nothing) for name in plain),
            ]
        )
        return application

    async def nothing(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weights})

    async def server(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "pretended", "max_req_input_len": self.script["context"]})

    async def update(self, request: web.Request) -> web.Response:
        self.weights = (await request.json())["weight_version"]
        return web.json_response({"success": True})

    async def generate(self, request: web.Request) -> web.Response:
        raw = await request.read()
        if b'"logprob_start_len"' in raw:
            ids = json.loads(raw)["input_ids"]
            return web.json_response(self.answer([0], {"input_token_logprobs": [[0.0, i] for i in ids]}))
        session = _RID.search(raw)[1]
        if session not in self.story:
            self.story[session] = next(self.stories)
        turn = self.story[session][self.turns[session]]
        self.turns[session] += 1
        await asyncio.sleep(self.random.expovariate(1 / self.script["seconds"]))
        return web.json_response(self.answer(turn, {}))

    def answer(self, ids: list[int], more: dict) -> dict:
        meta = {
            "finish_reason": {"type": "stop"},
            "completion_tokens": len(ids),
            "output_token_logprobs": [[-1.0, i, None] for i in ids],
            "weight_versions": [{"version": self.weights, "start": 0, "end": len(ids)}],
        }
        return {"output_ids": ids, "meta_info": meta | more}


async def serve(script: dict) -> None:
    runner = web.AppRunner(PretendedServer(script).application())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
