"""A turn that was written elsewhere, as the tokens that a policy would have sampled for it.

Teachers and old histories give a message in parts: a thought, a content, and calls with arguments as JSON text.
It becomes the turn that our renderer writes, or it is refused.  Newlines around a thought and a content are the
template's, as in Qwen3's own, and JSON gets the template's spelling; nothing else of a message is changed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from carr_jax.agent.chat import Chat, call_json, render_bodies, render_turn
from carr_jax.agent.parser import parse_turn
from carr_jax.agent.tokenizer import CONTROL


class Unwritable(ValueError):
    """A message that no policy could have sampled as one turn; the text says why, in one line."""


@dataclass(frozen=True)
class Message:
    """What an assistant said: `calls` are (tool, arguments as JSON text)."""

    thought: str
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def turn_text(message: Message, chat: Chat) -> str:
    """The turn in the grammar of `agent.parser`, canonical to the byte (CT-10, CT-12).

    Raises Unwritable for what would not be read again as it was written: control tokens in a text, arguments
    that are no JSON object of the tool's schema, a message that says nothing.
    """
    thought, content = message.thought.strip("\n"), message.content.strip("\n")
    bodies = [_body(name, arguments) for name, arguments in message.calls]
    _refuse_controls(thought, content, *bodies)
    parsed = parse_turn(render_bodies(thought, content, bodies), "stop", tools=chat.tools)
    if parsed.ill_formed is not None:
        raise Unwritable(parsed.ill_formed)
    _refuse_controls(*(call_json(call.name, call.arguments) for call in parsed.calls))  # escaped, in JSON
    return render_turn(parsed.thought, parsed.content, parsed.calls)


def turn_ids(message: Message, chat: Chat) -> list[int]:
    """The tokens of `turn_text`, stop token included.  Raises Unwritable, also for what they cannot spell."""
    text = turn_text(message, chat)
    ids = chat.turn_ids(text)
    if chat.tokenizer.decode(ids) != text:
        raise Unwritable("its text cannot be written in tokens: it is not in the normal form NFC of Unicode")
    return ids


def _body(name: str, arguments: str) -> str:
    """What stands between the tags of a call, with the arguments as they came: our parser judges them."""
    return f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n'


def _refuse_controls(*texts: str) -> None:
    for text in texts:
        if found := CONTROL.search(text):
            raise Unwritable(f"it holds the control token {found[0]}")
