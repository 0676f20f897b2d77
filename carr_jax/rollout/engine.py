"""The seam between episodes and whatever samples for them: tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from carr_jax.records import Generation, Sampling


class EngineError(RuntimeError):
    """The engine cannot serve a request; the episode ends as `End.ENGINE_ERROR`, whose reward is unknown."""


class WeightUpdateError(EngineError):
    """New weights were refused; every server that answers still has, or has again, those of before."""


class Engine(Protocol):
    """What every engine does, embedded or behind HTTP.

    A *session* is one episode.  Each of its turns sends the whole prefix so far; an engine may keep the
    session's cache between turns, but must give the same answer when it was lost.  Only temperature sampling.
    An engine whose `health` says `seeded` draws at absolute position i by `sampling.seed`, i and the prefix
    alone, whatever other sessions do.
    """

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Generation:
        """Sample one turn after `ids` until a stop id, `max_tokens` or the end of the engine's context.

        `Generation.finish` is "stop" (the stop id is the last id), "length" or "abort"; a weight update during
        the turn shows in `versions`.  Raises EngineError for a prefix without room for one more token, ids
        outside the vocabulary, a session with a request in flight, and when the engine itself fails.
        """
        ...

    async def release(self, session: str) -> None:
        """The episode is over: abort what is in flight and forget its cache.  Unknown sessions are no error."""
        ...

    async def update_weights(self, folder: Path, version: int) -> None:
        """Later tokens come from the policy in `folder`; caches of the old weights are invalid.

        Turns in flight go on: none of their tokens is lost.  Raises WeightUpdateError, and then nothing has
        changed.
        """
        ...

    async def health(self) -> dict[str, Any]:
        """At least `status` ("ok" or "paused"), `version`, `active` and `waiting` requests, `seeded`."""
        ...

    async def abort(self, session: str) -> None:
        """End the session's request in flight, if any: it returns what it has, with finish "abort"."""
        ...

    async def pause(self) -> None:
        """Sample nothing until `resume`; requests wait and keep what they have."""
        ...

    async def resume(self) -> None:
        """Undo `pause`."""
        ...
