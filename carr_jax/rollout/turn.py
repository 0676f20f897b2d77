"""One turn on its way through servers that may fail: what was asked, and what is there so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from carr_jax.models.config import ModelConfig
from carr_jax.records import Generation, Sampling
from carr_jax.rollout.fleet import Member
from carr_jax.rollout.messages import Reply, RouteShape


@dataclass(eq=False)
class Turn:
    """One call of `Engine.generate`.

    The experts of positions before `first_row` were given with earlier turns of the session and are not asked
    for again: over a hundred turns of a long trajectory that would be most of the traffic.
    """

    session: str
    prefix: np.ndarray  # int64 [tokens]
    sampling: Sampling
    first_row: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    routes: list[np.ndarray] = field(default_factory=list)
    finish: str = ""
    failures: int = 0
    aborted: bool = False
    member: Member | None = None  # that has it now
    failed_at: Member | None = None
    rid: str = ""

    @property
    def so_far(self) -> np.ndarray:
        """The prefix of the next attempt, int64 [tokens]."""
        return np.append(self.prefix, self.ids) if self.ids else self.prefix

    @property
    def tokens(self) -> int:
        """Length of `so_far`."""
        return len(self.prefix) + len(self.ids)

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return self.sampling.max_tokens - len(self.ids)

    @property
    def rows(self) -> int:
        """Rows of routes that are known, counted from position 0."""
        return self.first_row + sum(map(len, self.routes))

    def route_shape(self, model: ModelConfig) -> RouteShape | None:
        """What to ask of a server that can tell the experts; None for a dense model."""
        return RouteShape(model.num_layers, model.experts_per_token, self.rows) if model.is_moe else None

    def add(self, reply: Reply, count: int, versions: list[int]) -> None:
        """Append the first `count` tokens of a reply.

        The experts of the last of them are in the next reply: nothing has passed it yet (MO-09).
        """
        self.ids += reply.ids[:count]
        self.logprobs += reply.logprobs[:count]
        self.versions += versions
        if reply.routes is not None:
            self.routes.append(reply.routes[: max(self.tokens - 1 - self.rows, 0)])

    def end(self, finish: str) -> None:
        """Decide from a reply's finish reason whether the turn is over; `finish` stays empty when it goes on.

        A server may know stop tokens of its own: those do not end our turn.
        """
        if finish == "stop" and self.ids and self.ids[-1] in self.sampling.stop_ids:
            self.finish = "stop"
        elif finish == "length" or self.left == 0:
            self.finish = "length"
        elif self.aborted:
            self.finish = "abort"

    def generation(self) -> Generation:
        """The finished turn; routes are -1 where they were not asked for."""
        routes = None
        if self.routes:
            parts = np.concatenate(self.routes).astype(np.int16)
            routes = np.pad(parts, ((self.first_row, 0), (0, 0), (0, 0)), constant_values=-1)
        return Generation(tuple(self.ids), tuple(self.logprobs), tuple(self.versions), self.finish, routes)
