"""The experts that an engine's router chose over an episode, put together from what each of its calls reported.

One token is behind: a call that ends at token n has passed the layers with the first n - 1 tokens alone.  The
row of its last token, and those of the observation that follows, come with the next call's prefill.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

UNKNOWN = -1  # the trainer's router chooses anew


@dataclass
class Routes:
    """Rows of `Trajectory.routes` that grow with an episode; None as long as no call has reported any.

    Rows that are there never change: a later call computes the earlier tokens anew only where a cache was lost,
    perhaps with other weights, and what was sampled came from the first.  What cannot be trusted becomes
    unknown, never an error: a missing reply, one with too few or too many rows, of another shape than before,
    or a row that names an expert twice (buffers that an engine never filled hold such rows).
    """

    _parts: list[np.ndarray] = field(default_factory=list)  # each int16 [rows, L, k]

    @classmethod
    def of(cls, routes: np.ndarray | None) -> Routes:
        """Those of a trajectory that goes on, up to its last known row: what follows is to come."""
        if routes is None:
            return cls()
        known = np.flatnonzero((routes != UNKNOWN).any(axis=(1, 2)))
        return cls([routes[: known[-1] + 1]] if len(known) else [])

    def extend(self, reply: np.ndarray | None, length: int) -> None:
        """Adds what a call reported that left the episode at `length` tokens, `Generation.routes`.

        Only the rows behind those that are there are taken, and copied, so that the reply can be freed.
        """
        known = sum(map(len, self._parts))
        if reply is not None and not self._fits(reply, length):
            reply = None
        if reply is None and not self._parts:
            return
        shape = self._parts[0].shape[1:] if self._parts else reply.shape[1:]
        rows = np.full((length - 1 - known, *shape), UNKNOWN, np.int16)
        if reply is not None:
            new = reply[known:]
            rows[: len(new)] = np.where(is_choice(new)[..., None], new, UNKNOWN)
        self._parts.append(rows)

    def complete(self, length: int) -> np.ndarray | None:
        """int16 [length, L, k] for the first `length` tokens of the episode; None when nothing was reported."""
        if not self._parts:
            return None
        rows = np.concatenate(self._parts)[: length - 1]
        missing = np.full((length - len(rows), *rows.shape[1:]), UNKNOWN, np.int16)
        return np.concatenate([rows, missing])

    def _fits(self, reply: np.ndarray, length: int) -> bool:
        """Whether each row can be assigned to a token: rows beyond the last but one would shift them all."""
        if reply.ndim != 3 or reply.dtype.kind not in "iu" or len(reply) >= length:
            return False
        return not self._parts or reply.shape[1:] == self._parts[0].shape[1:]


def is_choice(routes: np.ndarray) -> np.ndarray:
    """bool [...] for integers [..., k]: whether they are k different experts."""
    ordered = np.sort(routes, axis=-1)
    return (ordered[..., 0] >= 0) & (ordered[..., 1:] != ordered[..., :-1]).all(axis=-1)
