"""An episode that was played elsewhere, played again: the same turns and outputs through our episode code.

So the tokens and masks of an old conversation are those that reinforcement learning would have made of it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence

from carr_jax.agent.chat import Chat
from carr_jax.agent.writing import Message, Unwritable, turn_ids
from carr_jax.records import Generation, Sampling, ToolCall, ToolResult, Turn

NOTHING_SAID = Generation((), (), (), "abort")  # ends the episode; the engine says why


def written_turn(message: Message, chat: Chat, sampling: Sampling) -> Generation:
    """A message as an engine would have sampled it, cut at the token budget.  Raises Unwritable.

    Nobody knows how likely its tokens were: the log-probs are NaN, so nothing ever takes them for our policy's.
    """
    ids = turn_ids(message, chat)
    finish = "stop" if len(ids) <= sampling.max_tokens else "length"
    ids = ids[: sampling.max_tokens]
    return Generation(tuple(ids), (float("nan"),) * len(ids), (0,) * len(ids), finish)


class RecordedEngine:
    """The engine protocol around the turns of one conversation; `refused` says what could not be written."""

    def __init__(self, chat: Chat, turns: Sequence[Turn]) -> None:
        self.refused = ""
        self._chat, self._turns = chat, deque(turns)

    async def generate(self, ids: Sequence[int], sampling: Sampling, session_key: str) -> Generation:
        """The next turn of the conversation."""
        if not self._turns:
            self.refused = "the conversation ends before an answer"
            return NOTHING_SAID
        turn = self._turns.popleft()
        try:
            if turn.ill_formed is not None:
                raise Unwritable(turn.ill_formed)
            return written_turn(_message(turn), self._chat, sampling)
        except Unwritable as error:
            self.refused = str(error)
            return NOTHING_SAID

    async def release(self, session_key: str) -> None:
        """There is nothing to give back."""


def _message(turn: Turn) -> Message:
    calls = ((call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in turn.calls)
    return Message(turn.thought, turn.content, tuple(calls))


class RecordedTools:
    """Tools of one episode that say again what they said, in the order of the calls."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._results = deque(call.result for turn in turns for call in turn.calls)

    def session(self, question: str) -> RecordedTools:
        return self

    async def search(self, query: str, num: int) -> ToolResult:
        return self._next()

    async def open(self, id: int | str) -> ToolResult:
        return self._next()

    async def find(self, pattern: str) -> ToolResult:
        return self._next()

    def restore(self, calls: Sequence[ToolCall]) -> None:
        """A conversation is played in one go."""

    def _next(self) -> ToolResult:
        result = self._results.popleft()
        return result if result is not None else ToolResult("", error="unavailable", reason="not recorded")
