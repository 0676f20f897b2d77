"""A teacher behind a chat endpoint plays an episode of ours: messages there, tokens here.

The endpoint is told the question and our tools, and hears their outputs as tool messages.  What it says is
written as the turn that a policy would have sampled, and played on by the same episode code; a message that no
policy could have written ends the episode, and `refused` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from carr_jax.agent.chat import Chat
from carr_jax.agent.writing import Message, Unwritable, turn_ids
from carr_jax.llm.ask import ask
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.errors import CannotGoOn, Unusable
from carr_jax.llm.messages import Reply, Request
from carr_jax.records import Generation, Sampling
from carr_jax.rollout.recorded import NOTHING_SAID, written_turn
from carr_jax.rollout.scripted import tool_outputs

PURPOSE = "teacher"


class ChatTeacher:
    """The engine protocol around one conversation with a chat endpoint, for one episode.

    Replies are kept in `cache` under what was asked, so an episode that is played again asks nobody.  `failed`
    is why the endpoint gave no reply, and `trouble` what ends all that ask it: neither is the teacher's fault.
    """

    def __init__(self, client: ChatClient, cache: ReplyCache, chat: Chat, question: str) -> None:
        self.refused, self.failed = "", ""
        self.trouble: CannotGoOn | None = None
        self._client, self._cache, self._chat = client, cache, chat
        self._tools = tuple({**tool, "name": _wire_name(tool["name"])} for tool in chat.tools)
        self._names = {_wire_name(tool["name"]): tool["name"] for tool in chat.tools}
        self._messages: list[Mapping[str, Any]] = [{"role": "user", "content": question + chat.suffix}]
        self._open: tuple[str, ...] = ()  # ids of calls whose outputs are to come
        self._read = 0

    async def generate(self, ids: Sequence[int], sampling: Sampling, session_key: str) -> Generation:
        """What the teacher says next; an abort when that is nothing."""
        outputs = tool_outputs(self._chat, ids[self._read :])
        for name, output in zip(self._open, outputs, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": name, "content": output})
        request = Request(
            tuple(self._messages), sampling.max_tokens, sampling.temperature, sampling.seed, tools=self._tools
        )
        try:
            asked = await ask(self._client, self._cache, request, self._written, purpose=PURPOSE, tries=1)
        except CannotGoOn as error:
            self.trouble = error
            return NOTHING_SAID
        if asked.value is None:
            self.refused, self.failed = (asked.reason, "") if asked.invalid else ("", asked.reason)
            return NOTHING_SAID
        generation = written_turn(asked.value, self._chat, sampling)
        self._say(asked.value)
        self._read = len(ids) + len(generation.ids)
        return generation

    async def release(self, session_key: str) -> None:
        """There is nothing to give back."""

    def _written(self, reply: Reply) -> Message:
        """The message of a reply.  Raises Unusable for one that cannot stand in a trajectory."""
        if reply.refusal:
            raise Unusable(f"the teacher refused: {' '.join(reply.refusal.split())[:200]}")
        if reply.finish in ("length", "content_filter"):
            raise Unusable({"length": "the reply was cut off"}.get(reply.finish, "the reply was filtered"))
        message = message_of(reply, self._names)
        try:
            turn_ids(message, self._chat)
        except Unwritable as error:
            raise Unusable(str(error)) from error
        return message

    def _say(self, message: Message) -> None:
        """The teacher's own words, as it is to find them again."""
        turn = len(self._messages)
        self._open = tuple(f"call_{turn}_{i}" for i in range(len(message.calls)))
        said: dict[str, Any] = {"role": "assistant", "content": message.content}
        if message.thought:
            said["reasoning_content"] = message.thought
        if message.calls:
            said["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": _wire_name(name), "arguments": arguments}}
                for id, (name, arguments) in zip(self._open, message.calls, strict=True)
            ]
        self._messages.append(said)


def message_of(reply: Reply, names: Mapping[str, str]) -> Message:
    """A reply in parts, its tools by our `names`.

    A server that does not tell thoughts apart leaves them in the text, with or without the opening tag, which
    may have stood in the prompt (CT-09, CT-29).
    """
    thought, content = reply.reasoning, reply.text
    if not thought:
        before, closed, after = content.partition("</think>")
        if closed:
            thought, content = before.lstrip().removeprefix("<think>"), after
    return Message(thought, content, tuple((names.get(name, name), text) for name, text in reply.calls))


def _wire_name(tool: str) -> str:
    """A tool's name as endpoints take it: most allow no dot."""
    return tool.replace(".", "_")
