"""What is said to an SGLang server and what it answers: JSON in, records out, and nothing believed unchecked.

Ids and log-probs are read from `output_token_logprobs`, never from text.  An answer that is cut, misaligned or
contradicts itself is a typed error: trained on, it would be wrong silently.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from carr_jax.records import Sampling
from carr_jax.rollout.engine import EngineError

_SHOWN = 300  # characters of an answer in an error message


class ServerUnreachable(EngineError):
    """No connection, or it broke, or there was no answer in time."""


class ServerRefused(EngineError):
    """The server answered that it will not do this (4xx); asking again would not help."""


class ServerBadReply(EngineError):
    """The server failed (5xx), or its answer is cut, malformed or contradicts itself."""


@dataclass(frozen=True)
class Reply:
    """One answer to /generate; `ids`, `logprobs` and `versions` have equal length.

    `versions` holds the server's name of the weights that sampled each token.  `exact` says that the server
    kept account of this per token; otherwise it is the name at the end of the request.  `routes` is int32
    [rows, L, k] from the position on that was asked for.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[str, ...]
    finish: str
    exact: bool
    cached_tokens: int
    routes: np.ndarray | None = None


@dataclass(frozen=True)
class RouteShape:
    """Layers and experts per token of a mixture of experts, and the first position that is asked for."""

    layers: int
    experts: int
    start: int = 0


def json_text(body: Any) -> str:
    """`body`, in which arrays may stand, as JSON: ten times as quick as `json` on long prefixes."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def request_body(
    ids: Sequence[int], sampling: Sampling, rid: str, seeded: bool, routes: RouteShape | None
) -> dict[str, Any]:
    """What one /generate asks: everything that could change the distribution or the ids is said.

    Without stop ids the request ignores the model's own ones too; `ignore_eos` would also ignore those given.
    """
    params: dict[str, Any] = dict(
        max_new_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        stop=None,
        stop_token_ids=list(sampling.stop_ids),
        ignore_eos=not sampling.stop_ids,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        no_stop_trim=True,
    )
    if seeded:
        params["sampling_seed"] = sampling.seed
    body = dict(input_ids=np.asarray(ids), sampling_params=params, return_logprob=True, stream=False, rid=rid)
    if routes is not None:
        body |= dict(return_routed_experts=True, routed_experts_start_len=routes.start)
    return body


def parse_reply(where: str, raw: bytes, prompt: int, routes: RouteShape | None) -> Reply:
    """Read one answer to /generate for a prompt of `prompt` tokens.  Raises ServerBadReply."""
    answer = json_object(where, raw)
    try:
        meta = answer["meta_info"]
        finish = meta["finish_reason"]["type"]
        ids, logprobs = _sampled(answer, meta)
        versions, exact = _versions(meta, len(ids))
        if meta.get("prompt_tokens", prompt) != prompt:
            raise ValueError(f"it read {meta['prompt_tokens']} tokens where {prompt} were sent")
        if finish not in ("stop", "length", "abort"):
            raise ValueError(f"the unknown finish reason {finish!r}")
        taken = _routes(meta.get("routed_experts"), routes, prompt + len(ids) - 1)
        return Reply(ids, logprobs, versions, finish, exact, int(meta.get("cached_tokens") or 0), taken)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ServerBadReply(f"{where}: an answer that cannot be used: {error!r}") from error


def _sampled(answer: dict[str, Any], meta: dict[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ids and log-probs; a token without a log-prob has NaN.  Raises ValueError when the two do not fit."""
    output = answer.get("output_ids")
    rows = meta.get("output_token_logprobs")
    if rows is None:
        rows = [[None, token] for token in output or ()]
    ids = tuple(int(row[1]) for row in rows)
    if output is not None and tuple(output) != ids:
        raise ValueError(f"{len(output)} ids, and log-probs of {len(ids)} other ones")
    if meta.get("completion_tokens", len(ids)) != len(ids):
        raise ValueError(f"{len(ids)} tokens of {meta['completion_tokens']} that it sampled")
    return ids, tuple(logprob_or_nan(row[0]) for row in rows)


def logprob_or_nan(value: Any) -> float:
    return math.nan if value is None else float(value)


def _versions(meta: dict[str, Any], count: int) -> tuple[tuple[str, ...], bool]:
    """The name of the weights of each token, and whether the server said it per token."""
    spans = meta.get("weight_versions")
    if spans is None:
        return (str(meta.get("weight_version")),) * count, False
    names = tuple(str(span["version"]) for span in spans for _ in range(span["start"], span["end"]))
    if len(names) != count:
        raise ValueError(f"weight versions of {len(names)} tokens for {count}")
    return names, True


def _routes(packed: str | None, shape: RouteShape | None, rows: int) -> np.ndarray | None:
    """int32 [rows - start, L, k]; rows that are missing at the end are -1 (MO-07)."""
    if packed is None or shape is None:
        return None
    try:
        flat = np.frombuffer(base64.b64decode(packed, validate=True), "<i4")
    except binascii.Error as error:
        raise ValueError(f"routed experts that are no base64: {error}") from error
    taken = flat.reshape(-1, shape.layers, shape.experts)
    missing = max(rows, 0) - shape.start - len(taken)
    if missing < 0:
        raise ValueError(f"experts of {len(taken)} positions where there are {rows - shape.start}")
    return np.pad(taken, ((0, missing), (0, 0), (0, 0)), constant_values=-1)


def json_object(where: str, raw: bytes) -> dict[str, Any]:
    try:
        answer = parsed(raw)
    except ValueError as error:
        raise ServerBadReply(f"{where}: no JSON: {shown(raw)}") from error
    if not isinstance(answer, dict):
        raise ServerBadReply(f"{where}: no JSON object: {shown(raw)}")
    return answer


def parsed(raw: bytes) -> Any:
    """The value of a JSON text, in which NaN may stand: Python's writers put it there.  Raises ValueError."""
    try:
        return orjson.loads(raw)
    except ValueError:
        return json.loads(raw)


def error_message(raw: bytes) -> str:
    """What an error answer says, whatever its form."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        answer = parsed(raw)
        said = answer.get("error") or answer.get("message") or answer.get("detail")
        return str(said["message"] if isinstance(said, dict) else said)[:_SHOWN]
    return shown(raw)


def shown(raw: bytes) -> str:
    return " ".join(raw[:_SHOWN].decode(errors="replace").split()) or "(empty)"
