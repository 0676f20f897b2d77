"""Bounded staleness: which groups may start, and which must be trained next.

A group that starts at policy version v has no token older than v.  Step s trains on policy s, so its staleness
is at most s - v, and a limit of k means that step v + k must train the group at the latest: its deadline.
Each step takes exactly B groups.  That is possible for ever when, at step s and for every deadline d,

    outstanding groups with a deadline of d or earlier  <=  B (d - s + 1),                          (*)

the groups that the steps s..d can take.  A start is admitted only when (*) still holds after it; a batch is
taken only when (*) still holds for the next step.  Nothing else is needed: no token is ever too old, and only a
group whose turn has come is waited for.  With k = 0 this is the synchronous loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class StalenessGate:
    """The bookkeeping of one run: `per_step` groups (B) a step, `steps` steps, staleness at most `limit` (k).

    `version` is the number of finished steps.  A group goes by its position in the stream of questions.
    """

    per_step: int
    limit: int
    steps: int
    version: int = 0
    started: dict[int, int] = field(default_factory=dict)  # outstanding groups: version at which each started
    finished: set[int] = field(default_factory=set)

    def may_start(self) -> bool:
        """Whether one more group can start now, and will be needed."""
        steps = min(self.limit + 1, self.steps - self.version)
        return len(self.started) < self.per_step * steps

    def start(self, position: int, version: int | None = None) -> None:
        """The group at `position` starts (or, after a resume, started at `version`).

        Raises ValueError for a group that is outstanding already, or that would break the limit.
        """
        if position in self.started:
            raise ValueError(f"group {position} has started already")
        self.started[position] = self.version if version is None else version
        if not self._holds(self.started, self.version):
            del self.started[position]
            raise ValueError(f"group {position} would not be trained within {self.limit} versions")

    def finish(self, position: int) -> None:
        """All episodes of the group have ended and are scored."""
        if position not in self.started:
            raise ValueError(f"group {position} is not outstanding")
        self.finished.add(position)

    def drop(self, position: int) -> None:
        """The group will not be trained; another may start in its place."""
        del self.started[position]
        self.finished.discard(position)

    def batch(self) -> tuple[int, ...] | None:
        """The positions to train next, in order of the stream, or None while some must be waited for."""
        oldest_first = sorted(self.finished, key=lambda p: (self.started[p], p))
        chosen = oldest_first[: self.per_step]
        rest = {p: v for p, v in self.started.items() if p not in chosen}
        if len(chosen) < self.per_step or not self._holds(rest, self.version + 1):
            return None
        return tuple(sorted(chosen))

    def train(self, positions: Iterable[int]) -> int:
        """The batch was trained and the next version is out; returns the largest staleness in it."""
        oldest = min(self.started[p] for p in positions)
        for position in positions:
            self.drop(position)
        self.version += 1
        return self.version - 1 - oldest

    def _holds(self, started: dict[int, int], step: int) -> bool:
        """(*) at `step`."""
        deadlines = sorted(v + self.limit for v in started.values())
        return all(n <= self.per_step * (d - step + 1) for n, d in enumerate(deadlines, 1))
