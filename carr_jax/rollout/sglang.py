"""A client of one SGLang server: its native HTTP API, which sglang and sglang-jax share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from carr_jax.records import Sampling
from carr_jax.rollout.messages import (
    Reply,
    RouteShape,
    ServerBadReply,
    ServerRefused,
    ServerUnreachable,
    error_message,
    json_object,
    json_text,
    logprob_or_nan,
    parse_reply,
    request_body,
)

_SHORT_S = 20.0  # seconds for a call that the server answers without computing
_LARGE = 1 << 20  # bytes: parsing more than this would hold up the event loop
_RESERVED = 6  # tokens of its context that SGLang keeps for itself


@dataclass(frozen=True)
class Capabilities:
    """What a server can do.  `context` is the largest prefix plus answer, in tokens, that it surely serves."""

    version: str  # of the program
    weight_version: str
    context: int
    seeds: bool  # draws depend on `sampling_seed` and the position alone
    moe: bool  # serves a mixture of experts
    routes: bool  # says which experts each token took
    updates: bool  # takes new weights while it runs

    def shortcomings(self) -> list[str]:
        """What a run has to do without, one line each."""
        no_routes = self.moe and not self.routes
        lacks = {
            "no weight updates: it can only be used with a policy that does not change": not self.updates,
            "no seeds (--enable-deterministic-inference): sampling cannot be repeated": not self.seeds,
            "no routed experts (--enable-return-routed-experts): no routing replay": no_routes,
        }
        return [text for text, lacking in lacks.items() if lacking]


def open_http() -> aiohttp.ClientSession:
    """The connections of one process to all its servers; a system-wide proxy is never used (TS-18).

    Idle connections are given up before the server closes them, at 5 s in uvicorn (TS-17).
    """
    return aiohttp.ClientSession(
        json_serialize=json_text,
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_SHORT_S),
        trust_env=False,
    )


class SGLangServer:
    """One server at `url`, such as http://10.0.0.2:30000.

    Every method raises ServerUnreachable, ServerRefused or ServerBadReply.  Where no time limit is given it is
    20 s.
    """

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._http = http

    def __repr__(self) -> str:
        return self.url

    # ---------------------------------------------------------------------------------------------- what it is

    async def capabilities(self) -> Capabilities:
        """Ask the server what it can do."""
        info = await self._first_of("/server_info", "/get_server_info")
        model = await self._model_info(_SHORT_S)
        status = await self._status("/update_weights_from_disk")  # GET: 405 where there is a POST of that name
        context = info.get("max_req_input_len") or (info.get("context_length") or 0) - _RESERVED
        if context <= 0:
            raise ServerBadReply(f"{self}: does not say its context length")
        return Capabilities(
            version=str(info.get("version", "unknown")),
            weight_version=str(model.get("weight_version")),
            context=int(context),
            seeds=bool(info.get("enable_deterministic_inference")),
            moe=any("Moe" in name for name in model.get("architectures") or ()),
            routes=bool(info.get("enable_return_routed_experts")),
            updates=status != 404,
        )

    async def weight_version(self, limit_s: float = _SHORT_S) -> str:
        """The server's name of its weights.  Also the sign of life: cheap, and answered while it is paused.

        (/health waits for a token: behind a long prefill, and in vain in a paused server, SG-02.)
        """
        return str((await self._model_info(limit_s)).get("weight_version"))

    async def health_generate(self, limit_s: float) -> None:
        """Returns when the server has computed something since it was asked; raises when it did not in time."""
        await self._call("GET", "/health_generate", limit_s=limit_s)

    # ------------------------------------------------------------------------------------------------ sampling

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, rid: str, seeded: bool, routes: RouteShape | None = None
    ) -> Reply:
        """Sample after `ids`; the caller limits the time.  An aborted request returns what it has."""
        body = request_body(ids, sampling, rid, seeded, routes)
        raw = await self._raw("POST", "/generate", body, None)
        work = (parse_reply, self.url, raw, len(ids), routes)
        return await asyncio.to_thread(*work) if len(raw) > _LARGE else work[0](*work[1:])

    async def prompt_logprobs(self, ids: Sequence[int], limit_s: float) -> tuple[np.ndarray, Reply]:
        """log p(ids[t + 1] | ids[: t + 1]) at temperature 1, float64 [len(ids) - 1], by one prefill."""
        body = request_body(ids, Sampling(1, ()), f"probe-{id(self)}", False, None) | {"logprob_start_len": 0}
        raw = await self._raw("POST", "/generate", body, limit_s)
        reply = parse_reply(self.url, raw, len(ids), None)
        rows = json_object(self.url, raw)["meta_info"].get("input_token_logprobs") or []
        if [row[1] for row in rows] != list(ids):
            raise ServerBadReply(f"{self}: log-probs of another prompt than was sent")
        return np.array([logprob_or_nan(row[0]) for row in rows[1:]]), reply

    async def abort(self, rid: str) -> None:
        """End a request; it answers with what it has.  Unknown ones are no error."""
        await self._call("POST", "/abort_request", {"rid": rid, "abort_all": False})

    # ------------------------------------------------------------------------------------------------- weights

    async def pause(self, mode: str, limit_s: float) -> None:
        """Sample nothing more.  "abort" ends all requests first; "retract" keeps them, without their cache."""
        await self._call("POST", "/pause_generation", {"mode": mode}, limit_s)

    async def resume(self, limit_s: float = _SHORT_S) -> None:
        """Undo `pause`."""
        await self._call("POST", "/continue_generation", {}, limit_s)

    async def flush_cache(self, limit_s: float = _SHORT_S) -> None:
        """Forget all cached prefixes; refused while a request holds one."""
        await self._call("POST", "/flush_cache", None, limit_s)

    async def update_weights(self, folder: Path, weight_version: str, limit_s: float) -> None:
        """Load the weights of a folder that the server can see and call them `weight_version`.

        The server must be paused.  A refusal does not mean that nothing has changed.
        """
        body = {
            "model_path": str(folder),
            "weight_version": weight_version,
            "abort_all_requests": False,  # said, because a default of true loses what all requests have (SG-01)
            "flush_cache": True,
        }
        answer = await self._json("POST", "/update_weights_from_disk", body, limit_s)
        if answer.get("success") is not True:
            raise ServerRefused(f"{self}: {answer.get('message', 'the update did not succeed')}")

    # ---------------------------------------------------------------------------------------------------- HTTP

    async def _model_info(self, limit_s: float) -> dict[str, Any]:
        return await self._first_of("/model_info", "/get_model_info", limit_s=limit_s)

    async def _first_of(self, *paths: str, limit_s: float = _SHORT_S) -> dict[str, Any]:
        """The answer at the first of several names of the same thing that the server knows."""
        for path in paths[:-1]:
            with contextlib.suppress(ServerRefused):
                return await self._json("GET", path, None, limit_s)
        return await self._json("GET", paths[-1], None, limit_s)

    async def _status(self, path: str) -> int:
        async with self._answer("GET", path, None, _SHORT_S) as response:
            return response.status

    async def _call(self, method: str, path: str, body: Any = None, limit_s: float | None = _SHORT_S) -> None:
        await self._raw(method, path, body, limit_s)

    async def _json(self, method: str, path: str, body: Any, limit_s: float | None) -> dict[str, Any]:
        return json_object(self.url, await self._raw(method, path, body, limit_s))

    async def _raw(self, method: str, path: str, body: Any, limit_s: float | None) -> bytes:
        """The body of a successful answer."""
        async with self._answer(method, path, body, limit_s) as response:
            raw = await response.read()
        if response.status >= 400:
            said = f"{self}{path}: HTTP {response.status}: {error_message(raw)}"
            again = response.status >= 500 or response.status in (408, 429)
            raise (ServerBadReply if again else ServerRefused)(said)
        return raw

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Any, limit_s: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with (
                asyncio.timeout(limit_s),
                self._http.request(method, self.url + path, json=body) as response,
            ):
                yield response
        except TimeoutError as error:
            raise ServerUnreachable(f"{self}{path}: no answer in {limit_s or _SHORT_S:.0f} s") from error
        except aiohttp.ClientPayloadError as error:
            raise ServerBadReply(f"{self}{path}: the answer was cut") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnreachable(f"{self}{path}: {error or type(error).__name__}") from error
