"""An SGLang server for tests: real HTTP around the embedded engine, in the very JSON of SGLang 0.5.23.

In a test:      async with StandIn(folder) as server: ... server.url ... server.faults.fail = 2 ...
As a process:   python tests/rollout/standin.py --policy=DIR --port=PORT [--deterministic]

What it answers was compared with the real server (see test_conformance.py, which runs against both).
"""

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import itertools
import json
import random
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from aiohttp import web
from forward import chosen_experts, teacher_forced

from carr_jax.models.config import from_hf_config
from carr_jax.records import InputError, Sampling
from carr_jax.rollout.embedded import EmbeddedEngine
from carr_jax.rollout.engine import EngineError, WeightUpdateError
from carr_jax.weights import load_params

SHAPE = {"prefill_rows": 1, "prefill_chunk": 16, "decode_steps": 1, "window": 128}


@dataclasses.dataclass
class Faults:
    """What goes wrong: counts are of the next /generate calls, the flags hold until they are taken back."""

    fail: int = 0  # HTTP 500
    hang: int = 0  # no answer, ever
    cut: int = 0  # half an answer
    without_logprobs: int = 0
    misaligned: int = 0  # a log-prob too few
    other_prompt: int = 0  # it read other ids than were sent
    refuse_update: bool = False
    load_then_refuse: bool = False  # as SGLang does when it cannot flush its cache
    wrong_weights: bool = False  # an update changes the name only
    hang_all: bool = False  # no call whatsoever is answered
    share_hanging: float = 0.0  # of all /generate calls
    share_failing: float = 0.0

    def take(self, name: str) -> bool:
        share = {"hang": self.share_hanging, "fail": self.share_failing}.get(name, 0.0)
        if random.random() < share:
            return True
        left = getattr(self, name)
        setattr(self, name, max(left - 1, 0))
        return left > 0


class PacedEngine(EmbeddedEngine):
    """Slow enough that something can happen in the middle of a turn."""

    pace_s = 0.002

    def _tick(self):
        time.sleep(self.pace_s)
        super()._tick()


class StandIn:
    """One server; `await die()` and `await begin()` end and start it on the same port, with the first weights.

    `spans` False leaves `weight_versions` out, as older servers do; `updates` False is like sglang-jax.
    """

    def __init__(self, folder, port=0, *, deterministic=True, spans=True, updates=True, max_length=96, slots=8):
        self.folder, self.port = Path(folder), port
        self.deterministic, self.spans, self.updates = deterministic, spans, updates
        self.config = from_hf_config(self.folder)
        self.shape = SHAPE | {"max_length": max_length, "slots": slots}
        self.faults = Faults()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self):
        await self.begin()
        return self

    async def __aexit__(self, *error):
        await self.die()

    async def begin(self):
        """Start with the weights of the folder, called "default" as SGLang calls them."""
        self.params = load_params(self.folder, self.config)
        self.engine = PacedEngine(self.params, self.config, **self.shape)
        self.names, self.in_flight = ["default"], {}
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.seeds = itertools.count(1_000_000)
        application = web.Application(middlewares=[self.hang_up])
        application.add_routes(self.routes())
        self.runner = web.AppRunner(application, shutdown_timeout=0.01)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def die(self):
        """All connections break; what was sampled is gone."""
        for connection in list(self.runner.server.connections):
            connection.force_close()
            if connection.transport is not None:
                connection.transport.abort()
        for task in self.in_flight.values():
            task.cancel()
        await self.runner.cleanup()

    def routes(self):
        posts = "generate abort_request pause_generation continue_generation flush_cache".split()
        posts += ["update_weights_from_disk"] * self.updates
        gets = "model_info get_model_info server_info get_server_info health health_generate".split()
        handlers = [web.post(f"/{name}", getattr(self, name)) for name in posts]
        return handlers + [web.get(f"/{name}", getattr(self, name.removeprefix("get_"))) for name in gets]

    @web.middleware
    async def hang_up(self, request, handler):
        if self.faults.hang_all:
            await asyncio.sleep(3600)
        return await handler(request)

    # ------------------------------------------------------------------------------------------ information

    async def model_info(self, request):
        known = {"model_path": str(self.folder), "is_generation": True, "model_type": "qwen3"}
        architectures = ["Qwen3MoeForCausalLM" if self.config.is_moe else "Qwen3ForCausalLM"]
        changing = {"weight_version": self.names[-1], "architectures": architectures}
        return web.json_response(known | changing)

    async def server_info(self, request):
        return web.json_response(
            {
                "version": "0.5.23",
                "context_length": None,
                "max_req_input_len": self.shape["max_length"],
                "enable_deterministic_inference": self.deterministic,
                "enable_return_routed_experts": self.config.is_moe,
            }
        )

    async def health(self, request):
        return web.Response()

    health_generate = health

    # ------------------------------------------------------------------------------------------ sampling

    async def generate(self, request):
        body = await request.json()
        faults = self.faults
        if faults.take("fail"):
            return web.json_response({"error": {"message": "out of memory"}}, status=500)
        if faults.take("hang"):
            await asyncio.sleep(3600)
        if body["rid"] in self.in_flight:
            return self.bad(f"Duplicate request ID detected: {body['rid']}")
        task = asyncio.ensure_future(self.sample(body))
        self.in_flight[body["rid"]] = task
        try:
            answer = await task
        except EngineError as error:
            return self.bad(str(error))
        finally:
            self.in_flight.pop(
                body["rid"], None
            )  # not released: its cache stays for later turns of the session
        return self.reply(answer)

    def reply(self, answer):
        faults, meta = self.faults, answer["meta_info"]
        if faults.take("without_logprobs"):
            del meta["output_token_logprobs"]
        if faults.take("misaligned"):
            meta["output_token_logprobs"].pop()
        if faults.take("other_prompt"):
            meta["prompt_tokens"] += 1
        text = json.dumps(answer)
        return web.Response(
            text=text[: len(text) // 2] if faults.take("cut") else text, content_type="application/json"
        )

    async def sample(self, body):
        """The JSON of one answer."""
        await self.may_begin.wait()
        ids, params = body["input_ids"], body["sampling_params"]
        limit = self.shape["max_length"]
        if len(ids) >= limit:
            raise EngineError(
                f"The input ({len(ids)} tokens) is longer than the model's context length ({limit} tokens)."
            )
        stop_ids = () if params["ignore_eos"] else tuple(params["stop_token_ids"] or ())
        seed = params.get("sampling_seed", 42) if self.deterministic else next(self.seeds)
        sampling = Sampling(params["max_new_tokens"], stop_ids, params["temperature"], seed)
        cached = int(self.engine._common(ids[:-1]).max())
        generation = await self.engine.generate(ids, sampling, body["rid"])
        return self.answer(body, generation, cached)

    def answer(self, body, generation, cached):
        ids, output = body["input_ids"], list(generation.ids)
        meta = {
            "id": body["rid"],
            "finish_reason": self.finish(generation),
            "prompt_tokens": len(ids),
            "weight_version": self.names[-1],
            "num_retractions": 0,
            "input_token_logprobs": self.prompt(ids) if body.get("logprob_start_len") == 0 else [],
            "output_token_logprobs": [[p, i, None] for p, i in zip(generation.logprobs, output, strict=True)],
            "completion_tokens": len(output),
            "cached_tokens": cached,
            "e2e_latency": 0.0,
        }
        if self.spans:
            meta["weight_versions"] = self.weight_versions(generation.versions)
        if body.get("return_routed_experts"):
            taken = chosen_experts(self.params, self.config, [*ids, *output])
            taken = taken[body.get("routed_experts_start_len", 0) : -1]
            meta["routed_experts"] = base64.b64encode(taken.astype("<i4").tobytes()).decode()
        return {"output_ids": output, "meta_info": meta}

    def finish(self, generation):
        if generation.finish == "stop":
            return {"type": "stop", "matched": generation.ids[-1]}
        if generation.finish == "length":
            return {"type": "length", "length": len(generation.ids)}
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

    def prompt(self, ids):
        logprobs = [None, *teacher_forced(self.params, self.config, ids).tolist()]
        return [[p, i, None] for p, i in zip(logprobs, ids, strict=True)]

    def weight_versions(self, versions):
        spans, at = [], 0
        for version, group in itertools.groupby(versions):
            end = at + len(list(group))
            spans.append({"version": self.names[version], "start": at, "end": end})
            at = end
        return spans or [{"version": self.names[-1], "start": 0, "end": 0}]

    def bad(self, message):
        return web.json_response({"error": {"message": message}}, status=400)

    # ------------------------------------------------------------------------------------------ control

    async def abort_request(self, request):
        """As the real one, ends all requests whose id begins with the one given."""
        body = await request.json()
        for rid in list(self.in_flight):
            if body.get("abort_all") or (body["rid"] and rid.startswith(body["rid"])):
                await self.engine.abort(rid)
        return web.Response()

    async def pause_generation(self, request):
        mode = (await request.json()).get("mode", "abort")
        self.may_begin.clear()
        if mode == "abort":
            while begun := [r.session for r in self.engine._in_flight()]:
                for rid in begun:
                    await self.engine.abort(rid)
                await asyncio.sleep(0)
        else:
            await self.engine.pause()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request):
        self.may_begin.set()
        await self.engine.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, request):
        self.engine._length[:] = 0
        return web.Response(text="Cache flushed.\n")

    async def update_weights_from_disk(self, request):
        body = await request.json()
        if body.get("abort_all_requests"):
            for rid in list(self.in_flight):
                await self.engine.abort(rid)
        try:
            if self.faults.refuse_update:
                raise WeightUpdateError("Failed to get weights iterator: no space left")
            if not self.faults.wrong_weights:
                self.params = load_params(body["model_path"], self.config)
        except (InputError, WeightUpdateError) as error:
            return self.updated(False, str(error))
        self.names.append(body["weight_version"])
        self.engine.set_params(self.params, len(self.names) - 1)
        if self.faults.load_then_refuse:
            return self.updated(False, "Weights were updated, but the cache was not flushed because ...")
        return self.updated(True, "Succeeded to update model weights.")

    def updated(self, success, message):
        content = {"success": success, "message": message, "num_paused_requests": 0}
        return web.json_response(content, status=200 if success else 400)


async def serve(arguments):
    policy = Path(arguments.policy)
    longest = arguments.max_length or from_hf_config(policy).max_position
    server = StandIn(
        policy,
        arguments.port,
        deterministic=arguments.deterministic,
        max_length=longest,
        slots=arguments.slots,
    )
    server.faults.share_hanging, server.faults.share_failing = arguments.hang, arguments.fail
    server.shape |= {"prefill_rows": 1, "prefill_chunk": 128, "decode_steps": 16, "window": 256}
    PacedEngine.pace_s = 0.0
    async with server:
        print(f"ready {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=0, help="tokens; 0 = what the model allows")
    parser.add_argument("--hang", type=float, default=0.0, help="share of /generate calls without an answer")
    parser.add_argument("--fail", type=float, default=0.0, help="share of /generate calls with status 500")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parser.parse_args()))
