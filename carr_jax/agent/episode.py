"""One episode: a policy, a question and a search session become one trajectory.

The trajectory is an append-only buffer.  What the engine sampled goes in as it came, with mask 1, and is never
decoded and encoded again; an observation is encoded alone and goes in with mask 0.  The prompt of turn k + 1 is
the whole buffer after turn k, so a prefix cache and the trainer see what the policy saw.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from carr_jax.agent.buffer import Buffer
from carr_jax.agent.chat import Chat
from carr_jax.agent.parser import ParsedTurn, parse_turn
from carr_jax.agent.tokenizer import LONG
from carr_jax.agent.tools import SearchSession, run_call
from carr_jax.records import End, Generation, Question, Sampling, ToolCall, Trajectory, Turn

log = logging.getLogger(__name__)


class Engine(Protocol):
    """Samples one turn; `session_key` names the episode, so that an engine may keep its cache until release."""

    async def generate(self, ids: Sequence[int], sampling: Sampling, session_key: str) -> Generation: ...

    async def release(self, session_key: str) -> None: ...


@dataclass(frozen=True)
class Budgets:
    """Limits of one episode: tokens in all, turns with tool calls, executed calls, sampled tokens of a turn.

    As in the reference, an answering turn may follow the last turn with calls.  `seconds` is a deadline against
    what hangs (0 = none): who reaches it has an unknown reward.
    """

    context: int
    turns: int
    tool_calls: int
    turn_tokens: int
    seconds: float = 0.0


async def run_episode(
    question: Question,
    *,
    sample: int,
    engine: Engine,
    session: SearchSession,
    chat: Chat,
    budgets: Budgets,
    seed: int,
    temperature: float = 1.0,
    strict: bool = False,
    forgive: bool = False,
    buffer: Buffer | None = None,
) -> Trajectory:
    """Run the policy on a question until one of the ends of `records.End`; failures are ends, not exceptions.

    `sample` is the number within the group; every turn of every sample gets its own seed.  `forgive` (the
    reference's evaluation) answers a malformed call with an error text, where training ends the episode.
    `buffer` is what an interrupted episode had; others can watch it grow.  The engine's session is always
    released, also when the episode is cancelled.
    """
    key = f"{question.id}/{sample}/{seed}"
    buffer = buffer or Buffer.of_prompt(chat.prompt_ids(question.question))
    session.restore([call for turn in buffer.turns for call in turn.calls])
    episode = _Episode(buffer, key, engine, session, chat, budgets, temperature, strict, forgive)
    try:
        async with asyncio.timeout(budgets.seconds or None):
            end = await episode.run()
    except TimeoutError:
        log.warning("episode %s was stopped after %g seconds", key, budgets.seconds)
        end = End.DEADLINE
    finally:
        await _release(engine, key)
    response = buffer.turns[-1].content if end is End.ANSWERED else None
    return buffer.trajectory(question.id, sample, end, response)


@dataclass(frozen=True)
class _Episode:
    """The loop of one episode; all that changes is in `buffer`."""

    buffer: Buffer
    key: str
    engine: Engine
    session: SearchSession
    chat: Chat
    budgets: Budgets
    temperature: float
    strict: bool
    forgive: bool

    async def run(self) -> End:
        """Turns until something ends the episode."""
        while True:
            self.buffer.mark()
            room = self.budgets.context - len(self.buffer.ids)
            if room < 1:
                return End.CONTEXT_BUDGET
            generation = await self._generate(min(room, self.budgets.turn_tokens))
            if generation is None:
                return End.ENGINE_ERROR
            turn = self._append_turn(generation)
            if generation.finish == "abort":
                return End.ENGINE_ERROR
            if generation.finish == "length":
                return End.CONTEXT_BUDGET
            end = self._end_after(turn) or await self._act(turn.calls)
            if end is not None:
                return end

    async def _generate(self, max_tokens: int) -> Generation | None:
        """Sample one turn; None when the engine failed or broke its contract (the cause is logged)."""
        seed = turn_seed(self.key, len(self.buffer.turns))
        sampling = Sampling(max_tokens, self.chat.tokenizer.stop_ids, self.temperature, seed)
        try:
            generation = await self.engine.generate(self.buffer.ids[:], sampling, self.key)
            check_generation(generation, sampling)
            return generation
        except Exception:
            log.warning("engine failed in episode %s", self.key, exc_info=True)
            return None

    def _append_turn(self, generation: Generation) -> ParsedTurn:
        """Store what was sampled; all ids of the turn are decoded at once, so no character is cut in two."""
        start = len(self.buffer.ids)
        self.buffer.append_sampled(generation)
        text = self.chat.tokenizer.decode(generation.ids)
        parsed = parse_turn(text, generation.finish, tools=self.chat.tools, strict=self.strict)
        turn = Turn(
            start,
            len(self.buffer.ids),
            parsed.thought,
            parsed.content,
            parsed.calls,
            parsed.ill_formed,
            parsed.noncanonical,
        )
        self.buffer.turns.append(turn)
        return parsed

    def _end_after(self, turn: ParsedTurn) -> End | None:
        """The end that a complete turn itself brings about, before any tool runs."""
        if turn.ill_formed is not None and (turn.ends or not self.forgive):
            return End.FORMAT_ERROR
        if turn.ends:
            return End.ANSWERED
        return End.TURN_BUDGET if len(self.buffer.turns) > self.budgets.turns else None

    async def _act(self, calls: Sequence[ToolCall]) -> End | None:
        """Execute calls one after the other and append the observation, unless that ends the episode."""
        done: list[ToolCall] = []
        executed, end = self.buffer.executed, None
        for call in calls:
            if call.result is None:
                if executed >= self.budgets.tool_calls:
                    end = End.TOOL_BUDGET
                    break
                executed += 1
                call = replace(call, result=await run_call(self.session, call.name, call.arguments))
            done.append(call)
            if call.result.error == "unavailable":
                end = End.TOOL_ERROR
                break
        self.buffer.turns[-1] = replace(self.buffer.turns[-1], calls=(*done, *calls[len(done) :]))
        return end or await self._observe([call.result.output for call in done])

    async def _observe(self, outputs: Sequence[str]) -> End | None:
        """Append what the tools said; an observation that leaves no room for a token more is not appended.

        A long one is tokenised in a thread: all other episodes would wait for the milliseconds that it takes.
        """
        encode = self.chat.observation_ids
        long = sum(map(len, outputs)) > LONG
        ids = await asyncio.to_thread(encode, outputs) if long else encode(outputs)
        if len(self.buffer.ids) + len(ids) >= self.budgets.context:
            return End.CONTEXT_BUDGET
        self.buffer.append_context(ids)
        return None


def turn_seed(key: str, turn: int) -> int:
    """A 31-bit seed, a pure function of the episode and the turn."""
    digest = hashlib.sha256(f"{key}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def check_generation(generation: Generation, sampling: Sampling) -> None:
    """Raise ValueError when an engine breaks its contract: misaligned log-probs would train silently."""
    count = len(generation.ids)
    if len(generation.logprobs) != count or len(generation.versions) != count:
        raise ValueError(f"engine returned {count} ids but other numbers of log-probs or versions")
    if count > sampling.max_tokens:
        raise ValueError(f"engine returned {count} tokens where {sampling.max_tokens} were allowed")
    if generation.finish not in ("stop", "length", "abort"):
        raise ValueError(f"engine returned the unknown finish reason {generation.finish!r}")
    if generation.finish == "stop" and (not count or generation.ids[-1] not in sampling.stop_ids):
        raise ValueError("engine says stop, but the last id is no stop token")


async def _release(engine: Engine, key: str) -> None:
    """Give the engine its memory back; a failure here must not lose a finished trajectory."""
    try:
        await engine.release(key)
    except Exception:
        log.warning("engine could not release episode %s", key, exc_info=True)
