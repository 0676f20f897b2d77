"""Qwen3's chat format as token ids (tokens in, tokens out).

Every piece of a prompt is a list of parts: a `Control` token of the template, or a string.  Strings are always
encoded as plain text, so whatever a question, a page or a tool says, it cannot open or close a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from carr_jax.agent.tokenizer import Tokenizer
from carr_jax.agent.tools import TOOLS
from carr_jax.records import ToolCall


class Control(str):
    """A control token of the template."""


START, END = Control("<|im_start|>"), Control("<|im_end|>")
THINK, END_THINK = Control("<think>"), Control("</think>")
CALL, END_CALL = Control("<tool_call>"), Control("</tool_call>")
RESPONSE, END_RESPONSE = Control("<tool_response>"), Control("</tool_response>")

ANSWER_FORMAT = """

Answer in this format:
## Explanation with Citations
{short explanation with a citation for every fact}
## Exact Answer
{the answer only}
## References
{numbered sources}"""

_ASSISTANT = (START, "assistant\n", THINK, "\n")
_TURN_CONTROLS = re.compile(r"(</think>|</?tool_call>|<\|im_end\|>\Z)")


class Chat:
    """Builds prompts and observations as ids.

    `tools` are flat schemas ({name, description, parameters}), `suffix` is what follows the question in the
    user message.  Rows of the public data set bring both; ours are short.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Sequence[Mapping[str, Any]] = TOOLS,
        suffix: str = ANSWER_FORMAT,
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        self.suffix = suffix

    def prompt_ids(self, question: str) -> list[int]:
        """System block, user message, and an assistant turn opened inside its thought."""
        user = (START, f"user\n{question}{self.suffix}", END, "\n")
        return self._encode((*system_parts(self.tools), *user, *_ASSISTANT))

    def observation_ids(self, outputs: Sequence[str]) -> list[int]:
        """What follows a sampled stop token: a user turn with a block per call, then the next open thought."""
        return self._encode(observation_parts(outputs))

    def turn_ids(self, text: str) -> list[int]:
        """Ids of a written assistant turn (scripts, SFT).

        Only the tokens of the turn grammar are control tokens.  The end marker counts only at the very end.
        """
        pieces = _TURN_CONTROLS.split(text)  # plain and control text alternate
        return self._encode([Control(piece) if i % 2 else piece for i, piece in enumerate(pieces)])

    def _encode(self, parts: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, Control):
                ids.append(self.tokenizer.id(part))
            else:
                ids.extend(self.tokenizer.encode_plain(part))
        return ids


def system_parts(tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The system block that Qwen3's own template emits for tools; the wire format asks for these very bytes."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    head = (
        "system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        f"{lines}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
    )
    example = '\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    return (START, head, CALL, END_CALL, " XML tags:\n", CALL, example, END_CALL, END, "\n")


def observation_parts(outputs: Sequence[str]) -> tuple[str, ...]:
    """Template parts of an observation.  The newlines around an output belong to its text: they may merge."""
    parts: list[str] = ["\n", START, "user\n"]
    for index, output in enumerate(outputs):
        if index:
            parts.append("\n")
        parts += [RESPONSE, f"\n{output}\n", END_RESPONSE]
    return (*parts, END, "\n", *_ASSISTANT)


def call_json(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call as the template writes it: default separators, key order kept, non-ASCII not escaped."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def render_turn(thought: str, content: str = "", calls: Sequence[ToolCall] = ()) -> str:
    """Canonical text of an assistant turn that starts inside the prefilled think tag."""
    bodies = [f"\n{call_json(call.name, call.arguments)}\n" for call in calls]
    return render_bodies(thought, content, bodies)


def render_bodies(thought: str, content: str, bodies: Sequence[str]) -> str:
    """A turn around given tool-call bodies (everything between the tags)."""
    blocks = [f"{CALL}{body}{END_CALL}" for body in bodies]
    return f"{thought}\n{END_THINK}\n\n" + "\n".join([content, *blocks] if content else blocks) + END
