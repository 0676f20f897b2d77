"""From trajectories to the packed arrays of one optimiser step (NumPy, on the host).

Packing decides nothing about the gradient: the same examples give the same loss in any layout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from carr_jax.learning.layout import ATTENTION_ALONE, Cost, Packing, lay_out, measure
from carr_jax.records import TrainBatch, Trajectory


@dataclass(frozen=True)
class Example:
    """One token sequence with what the loss needs: arrays of length N, one scalar advantage.

    `mask[i]` is 1 where token i is a training target, `logprobs[i]` the engine's log-prob there.  `group` names
    the question whose samples share a baseline.  `routes` as in `Trajectory`: the experts to replay.
    """

    ids: np.ndarray  # int32 [N]
    mask: np.ndarray  # int8 [N]
    logprobs: np.ndarray  # float32 [N]
    advantage: float
    group: Hashable
    routes: np.ndarray | None = None  # int16 [N, L, k]

    @property
    def targets(self) -> int:
        """Tokens that can be trained on: the first token of a sequence is predicted by nothing (P18)."""
        return int(np.count_nonzero(self.mask[1:]))


def from_trajectory(trajectory: Trajectory, advantage: float) -> Example:
    """The example of a trajectory: its scalar advantage goes to each token that was sampled in it (P31).

    A token without a log-prob of the engine is no target: nobody knows how likely it was.
    """
    t = trajectory
    known = np.isfinite(t.logprobs)
    mask = np.where(known, t.mask, 0).astype(np.int8)
    logprobs = np.where(known, t.logprobs, 0).astype(np.float32)
    return Example(t.ids, mask, logprobs, float(advantage), t.question_id, t.routes)


def supervised_example(ids: np.ndarray, mask: np.ndarray, group: Hashable) -> Example:
    """An example for `sft_loss`, which looks at neither log-probs nor advantages."""
    ids = np.asarray(ids, np.int32)
    return Example(ids, np.asarray(mask, np.int8), np.zeros(ids.size, np.float32), 1.0, group)


def contributing(examples: Sequence[Example]) -> list[Example]:
    """Examples that belong into the loss and its denominator, in the given order.

    Leaves out examples without targets (P24) and groups whose advantages are all 0: they have no gradient, and
    counting their tokens would only shrink the step (P25).
    """
    trained = [e for e in examples if e.targets]
    alive = {e.group for e in trained if e.advantage != 0}
    return [e for e in trained if e.group in alive]


def sequence_weights(examples: Sequence[Example], normalizer: str) -> list[float]:
    """What one target token of each example weighs; the weights of all targets add up to 1.

    "global_tokens": mean over all tokens.  "per_group": mean over groups of the token mean of the group.
    "per_sequence": mean over sequences of the token mean of the sequence (gives short answers more weight per
    token, P01).
    """
    if normalizer == "global_tokens":
        total = max(sum(e.targets for e in examples), 1)
        return [1 / total for _ in examples]
    if normalizer == "per_group":
        tokens: Counter[Hashable] = Counter()
        for e in examples:
            tokens[e.group] += e.targets
        return [1 / (len(tokens) * tokens[e.group]) for e in examples]
    if normalizer == "per_sequence":
        return [1 / (len(examples) * max(e.targets, 1)) for e in examples]
    raise ValueError(f"normalizer={normalizer!r} is not one of global_tokens, per_group, per_sequence")


def micro_batches_needed(examples: Sequence[Example], row_length: int, rows: int, together: bool = True) -> int:
    """Micro-batches of `rows` rows that `pack` fills; at least 1, so that arrays are never empty."""
    lengths = [e.ids.size for e in contributing(examples)]
    return max(1, len(lay_out(lengths, row_length, rows, together=together)))


def pack(
    examples: Sequence[Example],
    row_length: int,
    rows: int,
    micro_batches: int,
    normalizer: str,
    shards: int = 1,
    cost: Cost = ATTENTION_ALONE,
    together: bool = True,
) -> TrainBatch:
    """The batch of one optimiser step, [micro_batches, rows, row_length], as `TrainBatch` documents it.

    On a mesh, `shards` is the number of parts that the rows of a micro-batch are cut into: each gets sequences
    of about the same total `cost`.  With `together` False, each sequence has a row of its own.

    Raises ValueError when a sequence is longer than a row, when its arrays differ in length, when examples have
    routes of different shapes, or need more than `micro_batches`.  With nothing to train on, no micro-batch is
    filled.
    """
    kept = contributing(examples)
    for e in kept:
        _check(e, row_length)
    weights = sequence_weights(kept, normalizer)
    layout = lay_out([e.ids.size for e in kept], row_length, rows, shards, cost, together)
    if len(layout) > micro_batches:
        raise ValueError(
            f"{len(kept)} sequences need {len(layout)} micro-batches of {rows} rows, there are "
            f"{micro_batches}: ask micro_batches_needed, or raise rows or row_length"
        )
    arrays = _empty((micro_batches, rows, row_length)) | _no_routes(kept, (micro_batches, rows, row_length))
    for micro, rows_of_micro in enumerate(layout):
        for row, indices in enumerate(rows_of_micro):
            start = 0
            for segment, i in enumerate(indices, start=1):
                _place({k: v[micro, row] for k, v in arrays.items()}, start, segment, kept[i], weights[i])
                start += kept[i].ids.size
    return TrainBatch(**arrays, micro_batches=len(layout))


def packing(batch: TrainBatch, shards: int = 1, cost: Cost = ATTENTION_ALONE) -> Packing:
    """How well the layout of a batch uses `shards` parts of a mesh."""
    filled = batch.segments[: batch.micro_batches]
    lengths = [[np.bincount(row)[1:].tolist() for row in rows] for rows in filled]
    return measure(lengths, batch.segments.shape[2], shards, cost)


def replayed(batch: TrainBatch) -> float:
    """Share of the predictions of a batch with routes that run through the experts the engine chose, in [0, 1].

    The last token of a sequence predicts nothing.  An engine tells the experts of all layers of a token or of
    none, so one of them is looked at: all are gigabytes.
    """
    after = np.pad(batch.segments[..., 1:], ((0, 0), (0, 0), (0, 1)))
    predicts = (batch.segments > 0) & (batch.segments == after)
    known = (batch.routes[..., 0] >= 0) & predicts
    return float(known.sum() / max(predicts.sum(), 1))


def _check(e: Example, row_length: int) -> None:
    n = e.ids.size
    if n > row_length:
        raise ValueError(
            f"a sequence of group {e.group!r} has {n} tokens and does not fit a row of {row_length}: "
            "raise learn.row_length or lower the context budget"
        )
    if e.mask.size != n or e.logprobs.size != n:
        raise ValueError(
            f"a sequence of group {e.group!r} has {n} ids, {e.mask.size} masks, {e.logprobs.size} log-probs"
        )
    if e.routes is not None and len(e.routes) != n:
        raise ValueError(f"a sequence of group {e.group!r} has {n} ids, but routes of {len(e.routes)} tokens")
    trained = e.mask != 0
    if not (np.isfinite(e.logprobs[trained]).all() and np.isfinite(e.advantage)):
        raise ValueError(f"a sequence of group {e.group!r} has a log-prob or advantage that is not finite")


def _empty(shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    ints = ("tokens", "targets", "segments", "positions")
    floats = ("weights", "engine_logprobs", "advantages")
    return {k: np.zeros(shape, np.int32) for k in ints} | {k: np.zeros(shape, np.float32) for k in floats}


def _no_routes(examples: Sequence[Example], shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """An array for the routes, all unknown; none when no example has any."""
    shapes = {e.routes.shape[1:] for e in examples if e.routes is not None}
    if not shapes:
        return {}
    if len(shapes) > 1:
        raise ValueError(f"routes of different shapes (layers, experts of a token): {sorted(shapes)}")
    return {"routes": np.full((*shape, math.prod(shapes.pop())), -1, np.int16)}


def _place(row: dict[str, np.ndarray], start: int, segment: int, e: Example, weight: float) -> None:
    """Writes one sequence into its row; targets, weights and log-probs move one position left (P18)."""
    n = e.ids.size
    whole, shifted = slice(start, start + n), slice(start, start + n - 1)
    trained = e.mask[1:] != 0
    row["tokens"][whole] = e.ids
    row["segments"][whole] = segment
    row["positions"][whole] = np.arange(n)
    row["targets"][shifted] = e.ids[1:]
    row["weights"][shifted] = np.where(trained, weight, 0.0)
    row["engine_logprobs"][shifted] = np.where(trained, e.logprobs[1:], 0.0)
    row["advantages"][shifted] = np.where(trained, e.advantage, 0.0)
    if e.routes is not None:
        row["routes"][whole] = e.routes.reshape(n, -1)
