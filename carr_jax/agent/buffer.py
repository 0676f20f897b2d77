"""The growing trajectory of an episode: append-only, and whole at every turn boundary."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from carr_jax.agent.routes import Routes
from carr_jax.records import End, Generation, Trajectory, Turn


@dataclass
class Buffer:
    """Parallel ids, mask, log-probs and versions, as in `Trajectory`; turns and routes so far.

    They are arrays and not lists: a thousand long lists would cost gigabytes, and the garbage collector, which
    looks through lists, half a second at a time.

    What the engine sampled goes in with mask 1, all else with mask 0; nothing is ever changed or removed.
    `mark` remembers the place from which an interrupted episode can go on.
    """

    prompt_length: int
    ids: array[int] = field(default_factory=lambda: array("i"))
    mask: array[int] = field(default_factory=lambda: array("b"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    turns: list[Turn] = field(default_factory=list)
    routes: Routes = field(default_factory=Routes)
    marked: tuple[int, int] = (0, 0)  # tokens and turns

    @classmethod
    def of_prompt(cls, ids: Sequence[int]) -> Buffer:
        """A buffer with nothing but the prompt."""
        buffer = cls(len(ids))
        buffer.append_context(ids)
        buffer.mark()
        return buffer

    @classmethod
    def of_trajectory(cls, t: Trajectory) -> Buffer:
        """The buffer that `unfinished` was taken from."""
        buffer = cls(t.prompt_length, turns=list(t.turns), routes=Routes.of(t.routes))
        buffer._extend(t.ids, t.mask, t.logprobs, t.versions)
        buffer.mark()
        return buffer

    @property
    def executed(self) -> int:
        """Tool calls that were carried out; those of an ill-formed turn have their result from the parser."""
        formed = (turn for turn in self.turns if turn.ill_formed is None)
        return sum(call.result is not None for turn in formed for call in turn.calls)

    def append_context(self, ids: Sequence[int]) -> None:
        """Add tokens that nobody sampled."""
        count = len(ids)
        self._extend(ids, array("b", [0]) * count, array("f", [0.0]) * count, array("i", [-1]) * count)

    def append_sampled(self, generation: Generation) -> None:
        """Add what the engine sampled, as it came."""
        count = len(generation.ids)
        self._extend(generation.ids, array("b", [1]) * count, generation.logprobs, generation.versions)
        self.routes.extend(generation.routes, len(self.ids))

    def _extend(self, *columns: Sequence) -> None:
        for kept, new in zip((self.ids, self.mask, self.logprobs, self.versions), columns, strict=True):
            kept.extend(new)

    def mark(self) -> None:
        """All turns so far are complete, their observations included."""
        self.marked = len(self.ids), len(self.turns)

    def trajectory(self, question_id: str, sample: int, end: End, response: str | None = None) -> Trajectory:
        """Everything so far as a record."""
        return self._cut(question_id, sample, end, response, len(self.ids), len(self.turns))

    def unfinished(self, question_id: str, sample: int) -> Trajectory:
        """What stands up to the mark, as a record with the end UNFINISHED; the turn in flight is left out."""
        return self._cut(question_id, sample, End.UNFINISHED, None, *self.marked)

    def _cut(self, question_id, sample, end, response, tokens: int, turns: int) -> Trajectory:
        return Trajectory(
            question_id=question_id,
            sample=sample,
            prompt_length=self.prompt_length,
            ids=np.asarray(self.ids[:tokens], np.int32),
            mask=np.asarray(self.mask[:tokens], np.int8),
            logprobs=np.asarray(self.logprobs[:tokens], np.float32),
            versions=np.asarray(self.versions[:tokens], np.int32),
            turns=tuple(self.turns[:turns]),
            end=end,
            response=response,
            routes=self.routes.complete(tokens),
        )
