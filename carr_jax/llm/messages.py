"""What is said to an OpenAI-compatible endpoint and what it answers: JSON in, records out, nothing believed."""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carr_jax.llm.errors import ChatError

_SHOWN = 300  # characters of an answer in an error message
_BYTES_PER_TOKEN = 2  # hardly any text has more tokens than that, so estimates err on the dear side


@dataclass(frozen=True)
class Request:
    """One question to a model: everything that decides the reply, apart from the model itself.

    `messages` are (role, text) pairs, or whole messages where there is more to say (calls and their outputs).
    `schema` is the JSON schema of the object that the reply should be, or None for prose.  `tools` are what the
    model may call, flat schemas.  Another `seed` is another draw.
    """

    messages: tuple[tuple[str, str] | Mapping[str, Any], ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """An upper estimate."""
        texts = (m[1] if isinstance(m, tuple) else json.dumps(m) for m in (*self.messages, *self.tools))
        return sum(len(text.encode(errors="replace")) for text in texts) // _BYTES_PER_TOKEN + 16

    def key(self, model: str) -> str:
        """The content address of the reply: a hash of model, messages, sampling, schema and tools.

        Neither address nor key of an endpoint are part of it: who moves house keeps what was said.
        """
        parts = [model, self.messages, self.max_tokens, self.temperature, self.seed, self.schema]
        parts += [self.tools] if self.tools else []  # what was asked without any keeps its address
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Reply:
    """What a model said.

    `finish` is the provider's reason to stop, "empty" when there was no message at all.  `refusal` is what it
    said instead of an answer.  `calls` are (tool, arguments as JSON text).  `cached_tokens` of the
    `prompt_tokens` came from the provider's prefix cache.  A reply from our own cache (`cached`) has cost and
    latency 0, and keeps its tokens.  `dialect` says how the endpoint was asked.
    """

    text: str
    reasoning: str = ""
    refusal: str = ""
    finish: str = "stop"
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    latency_s: float = 0.0
    cached: bool = False
    dialect: str = ""
    calls: tuple[tuple[str, str], ...] = ()


# ------------------------------------------------------------------------------------------------- the request


_SAMPLING = ("temperature", "seed")
_THOUGHTS = "reasoning_content"  # of earlier turns; some endpoints want them again, some refuse them
_FIELDS = f"max_completion_tokens|response_format|temperature|seed|{_THOUGHTS}"
_FIELD = re.compile(rf"(?<![\w-])(?:{_FIELDS})(?![\w-])")


@dataclass(frozen=True)
class Dialect:
    """How an endpoint wants to be asked, as far as that has been found out; `str` says it in a few words.

    It is no part of `Request.key`: a run finds its replies again before it meets any endpoint, and a model that
    takes no temperature has but one.  How a reply was asked for stands in `Reply.dialect`.
    """

    response_format: str = "json_schema"
    limit: str = "max_tokens"  # the name of that field
    sampling: tuple[str, ...] = _SAMPLING  # the fields that are sent of it
    thoughts: bool = True  # whether an assistant's earlier thoughts are sent

    def __str__(self) -> str:
        unsent = [f"no {name}" for name in _SAMPLING if name not in self.sampling]
        unsent += [] if self.thoughts else [f"no {_THOUGHTS}"]
        return ", ".join((self.response_format, self.limit, *unsent))

    def after(self, refusal: str, structured: bool) -> Dialect | None:
        """What to try when a request was refused with these words; None when nothing is left to try.

        A field that is named is left out, simplified, or called by its other name; when none is, the form of
        the reply is simplified.
        """
        named = set(_FIELD.findall(refusal))
        if self.limit == "max_tokens" and "max_completion_tokens" in named:
            return dataclasses.replace(self, limit="max_completion_tokens")
        if self.thoughts and _THOUGHTS in named:
            return dataclasses.replace(self, thoughts=False)
        simpler = {"json_schema": "json_object", "json_object": "text"}.get(self.response_format)
        fewer = tuple(name for name in self.sampling if name not in named)
        if fewer != self.sampling and not (structured and simpler and "response_format" in named):
            return dataclasses.replace(self, sampling=fewer)
        return dataclasses.replace(self, response_format=simpler) if structured and simpler else None


def request_body(request: Request, model: str, dialect: Dialect) -> dict[str, Any]:
    """The JSON of one call, with sampling pinned as far as it can be: defaults are not known and change."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message, dialect) for message in request.messages],
        **{name: getattr(request, name) for name in dialect.sampling},
        dialect.limit: request.max_tokens,
        "stream": False,
    }
    if request.schema is not None and dialect.response_format == "json_schema":
        schema = {"name": "reply", "strict": True, "schema": request.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif request.schema is not None and dialect.response_format == "json_object":
        body["response_format"] = {"type": "json_object"}
    if request.tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
    return body


def _message(message: tuple[str, str] | Mapping[str, Any], dialect: Dialect) -> Mapping[str, Any]:
    if isinstance(message, tuple):
        return {"role": message[0], "content": message[1]}
    return message if dialect.thoughts else {k: v for k, v in message.items() if k != _THOUGHTS}


# --------------------------------------------------------------------------------------------------- the reply


def parse_reply(raw: bytes, request: Request) -> Reply:
    """Read a successful answer.  No choices, or a message of null, is a reply without text (JP-09).

    A reply that does not say its tokens gets upper estimates.  Raises ChatError for what is no completion.
    """
    try:
        answer = json.loads(raw)
        if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
            raise ValueError(error_message(raw))
        choice = (answer["choices"] or [None])[0] or {}
        message = choice.get("message") or {}
        text, usage = _text(message.get("content")), answer.get("usage") or {}
        reasoning = _text(message.get("reasoning_content") or message.get("reasoning"))
        finish = str(choice.get("finish_reason") or "stop") if message else "empty"
        calls = tuple(map(_call, message.get("tool_calls") or ()))
        prompt = _count(usage, "prompt_tokens", request.prompt_tokens)
        said = "".join((text, reasoning, *(part for call in calls for part in call)))
        written = len(said.encode(errors="replace")) // _BYTES_PER_TOKEN
        return Reply(
            text,
            reasoning,
            _text(message.get("refusal")),
            finish,
            str(answer.get("model") or ""),
            prompt,
            min(_cached(usage), prompt),
            _count(usage, "completion_tokens", written),
            calls=calls,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"an answer that is no completion: {error or type(error).__name__}"
        raise ChatError("garbled", text, retry=True, billed=True) from error


def _text(content: Any) -> str:
    """The text of a content field: a string, or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _call(call: Mapping[str, Any]) -> tuple[str, str]:
    """(tool, arguments as JSON text); some servers give the arguments as the object that they are."""
    name, arguments = call["function"]["name"], call["function"].get("arguments")
    if not isinstance(name, str):
        raise TypeError(f"the name of a call is {name!r:.80}")
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _count(usage: Mapping[str, Any], name: str, estimate: int) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and value >= 0 else estimate


def _cached(usage: Mapping[str, Any]) -> int:
    """Prompt tokens from the provider's cache, under the two names that are in use."""
    details = usage.get("prompt_tokens_details") or {}
    return _count(details, "cached_tokens", _count(usage, "prompt_cache_hit_tokens", 0))


# ------------------------------------------------------------------------------------------------ a refusal


def error_message(raw: bytes) -> str:
    """What an error answer says, whatever its form, as one short line."""
    said: Any = None
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        answer = json.loads(raw)
        said = answer.get("error") or answer.get("message") or answer.get("detail")
        said = said.get("message") or said if isinstance(said, dict) else said
    text = str(said) if said else raw[: 4 * _SHOWN].decode(errors="replace")
    return " ".join(text.split())[:_SHOWN] or "(empty)"


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
