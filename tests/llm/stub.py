"""An OpenAI-compatible server of ours: real HTTP, a script for a mind, and every fault that was ever reported.

    async with Stub(mind) as stub: ... stub.url ... stub.script = ["http_500", "fenced"] ...

`mind(body)` gives the text of a reply.  `refuses` has the words of refusal of fields that a body must not
have.  Each call takes the next fault of `script`; when that is used up, one call in `every` (drawn with
`seed`) has one of `faults`.  `calls` are the bodies that came, `keys` their keys.
"""

import asyncio
import itertools
import json
import random

from aiohttp import web

# What goes wrong before there is a reply, on the level of HTTP ...
TRANSPORT = "storm http_500 http_529 hang disconnect truncated not_json error_200 slow_then_cut".split()
# ... what is no usable reply ...
USELESS = "no_choices null_message null_content refusal filtered prose conflict half".split()
# ... and what is odd, and right all the same.
ODD = "fenced two_fences python preamble reasoning trailing_comma parts escapes slow".split()
_FORMATS = ("json_schema", "json_object")


class Stub:
    def __init__(self, mind, *, formats=_FORMATS, keys=None, limit_field="max_tokens", refuses=None, tls=None):
        self.mind, self.formats, self.good_keys, self.limit_field = mind, formats, keys, limit_field
        self.script, self.faults, self.share = [], (), 0.0
        self.random = random.Random(0)
        self.calls, self.keys, self.given = [], [], []
        self.in_flight = self.most_in_flight = 0
        self.refuses, self.tls = refuses or {}, tls
        self.pause_s = 0.0
        self.retry_after = "0"
        self.usage = True
        self.finish = itertools.repeat("stop")

    async def __aenter__(self):
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_post("/elsewhere", self.elsewhere)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=self.tls)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/v1"
        return self

    async def __aexit__(self, *error):
        await self.runner.cleanup()

    async def elsewhere(self, request):
        self.given.append("followed a redirect")
        return web.json_response(completion("{}"))

    def as_judge(self, budget):
        """Options of a command that is to ask this stub, where a reply may cost $1 and costs $0.1."""
        judge = {
            "endpoints": f'("{self.url}",)',
            "price_prompt": 0,
            "price_completion": 10_000,
            "budget_usd": budget,
            "concurrency": 1,
            "max_tokens": 100,
        }
        return [f"--config.judge.{key}={value}" for key, value in judge.items()]

    async def answer(self, request):
        body = await request.json()
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.calls.append(body)
        self.keys.append(key)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(request, body, key)
        finally:
            self.in_flight -= 1

    async def _answer(self, request, body, key):
        await asyncio.sleep(self.pause_s)
        if self.good_keys is not None and key not in self.good_keys:
            return error(
                self.good_keys.get("status", 401) if isinstance(self.good_keys, dict) else 401, f"bad {key}"
            )
        asked = body.get("response_format", {}).get("type")
        if asked is not None and asked not in self.formats:
            return error(400, f"response_format {asked} is not supported")
        if self.limit_field not in body:
            return error(400, f"Unsupported parameter, use '{self.limit_field}' instead")
        if named := [words for field, words in self.refuses.items() if field in body]:
            return error(400, named[0])
        if self.script:
            fault = self.script.pop(0)
        else:
            fault = self.random.choice(self.faults) if self.random.random() < self.share else "none"
        self.given.append(fault)
        return await getattr(self, fault, self.reply)(request, body, fault)

    # ----------------------------------------------------------------------------------------- faults of HTTP

    async def storm(self, request, body, fault):
        return error(429, "slow down", {"Retry-After": self.retry_after})

    async def quota(self, request, body, fault):
        return web.json_response({"error": {"message": "no money", "code": "insufficient_quota"}}, status=429)

    async def http_408(self, request, body, fault):
        return error(408, "too slow")

    async def http_409(self, request, body, fault):
        return error(409, "not now")

    async def http_500(self, request, body, fault):
        return error(500, "oops")

    async def http_529(self, request, body, fault):
        return web.Response(status=529, text="overloaded")

    async def http_400(self, request, body, fault):
        return error(400, "the prompt is too long")

    async def http_403(self, request, body, fault):
        return error(403, "flagged")

    async def hang(self, request, body, fault):
        await asyncio.sleep(3600)

    async def disconnect(self, request, body, fault):
        request.transport.close()
        await asyncio.sleep(1)

    async def truncated(self, request, body, fault):
        text = json.dumps(completion(self.mind(body)))
        return web.Response(text=text[: len(text) // 2], content_type="application/json")

    async def slow_then_cut(self, request, body, fault):
        response = web.StreamResponse(headers={"Content-Length": "5000"})
        await response.prepare(request)
        await response.write(b'{"choices": [')
        await asyncio.sleep(0.01)
        request.transport.close()
        return response

    async def not_json(self, request, body, fault):
        return web.Response(text="<html>Bad gateway</html>")

    async def error_200(self, request, body, fault):
        return web.json_response({"error": {"message": "upstream is down"}})

    async def endless(self, request, body, fault):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(200):
            await response.write(b" " * (1 << 16))
        return response

    async def redirect(self, request, body, fault):
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async def slow(self, request, body, fault):
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        data = json.dumps(completion(self.mind(body))).encode()
        for start in range(0, len(data), 100):
            await response.write(data[start : start + 100])
            await asyncio.sleep(0)
        return response

    # ------------------------------------------------------------------------------------------ odd replies

    async def reply(self, request, body, fault):
        answer = completion(self.mind(body), next(self.finish))
        if not self.usage:
            del answer["usage"]
        message, text = answer["choices"][0]["message"], answer["choices"][0]["message"]["content"]
        if fault == "no_choices":
            answer["choices"] = []
        elif fault == "null_message":
            answer["choices"][0]["message"] = None
        elif fault == "null_content":
            message["content"] = None
        elif fault == "refusal":
            message.update(content=None, refusal="I would rather not.")
        elif fault == "filtered":
            answer["choices"][0]["finish_reason"] = "content_filter"
        elif fault == "reasoning":
            message.update(content=None, reasoning_content=f"So it must be this.\n{text}")
        elif fault == "parts":
            message["content"] = [{"type": "text", "text": text}]
        elif fault != "none":
            message["content"] = ODD_TEXTS[fault](text)
        return web.json_response(answer)


def opposite(text):
    """The same object with every boolean turned round, and every name replaced."""
    turn = {True: False, False: True}
    values = json.loads(text)
    for key, value in values.items():
        if isinstance(value, bool):
            values[key] = turn[value]
        elif isinstance(value, dict):
            values[key] = {**value, "supported": turn[value["supported"]]}
        elif key != "code":
            values[key] = "Somebody Else"
    return json.dumps(values)


ODD_TEXTS = {
    "prose": lambda text: "The answer looks right to me, yes, correct: true.",
    "conflict": lambda text: f"First I thought ```json\n{opposite(text)}\n``` but then\n```json\n{text}\n```",
    "half": lambda text: text[: len(text) // 2],
    "fenced": lambda text: f"```json\n{text}\n```",
    "two_fences": lambda text: f"Draft:\n```\n{text}\n```\nFinal, the same:\n```json\n{text}\n```\nDone.",
    "python": lambda text: text.replace("true", "True").replace("false", "False").replace("null", "None"),
    "preamble": lambda text: f"<think>If {opposite(text)} were so ...</think>\n\n{text}",
    "trailing_comma": lambda text: text[:-1] + ",\n}",
    "escapes": lambda text: text[:-1] + ', "note": "it costs \\$5 \\o/"}',
}


def completion(text, finish="stop"):
    return {
        "id": "c",
        "object": "chat.completion",
        "model": "stub-1",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 40},
        },
    }


def error(status, text, headers=None):
    return web.json_response({"error": {"message": text, "type": "x"}}, status=status, headers=headers)


class FakeTime:
    """Time that passes only in sleep, and chance that always draws the same."""

    def __init__(self, draw=0.5):
        self.t, self.slept, self.value = 0.0, [], draw

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.t += seconds
        await asyncio.sleep(0)

    def timing(self):
        from carr_jax.calls.patience import Timing

        return Timing(
            clock=lambda: self.t,
            now=lambda: 1_700_000_000.0 + self.t,
            sleep=self.sleep,
            draw=lambda: self.value,
        )
