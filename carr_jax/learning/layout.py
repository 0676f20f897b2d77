"""Which sequence lies where: rows of a fixed length, micro-batches of rows, shards of a micro-batch.

Only lengths matter here.  Three ideas, one after another: `fill_rows` finds how few rows hold all sequences
and so how many micro-batches the step needs; `deal` gives each shard its share of the work; `lay_out` puts each
shard's sequences into rows and sorts these by cost, so that the rows of a micro-batch cost about the same.
Everything depends on the arguments alone: each host of a run finds the same layout.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from carr_jax.models.config import ModelConfig
from carr_jax.models.flops import forward_flops, pair_flops

Row = list[int]  # indices of the sequences in a row


class Cost(NamedTuple):
    """Forward FLOPs of a sequence of n tokens: n * (linear + quadratic * n)."""

    linear: float  # of a token, outside attention
    quadratic: float  # of attention, of a token, for each token of its sequence

    def of(self, length: int) -> float:
        return length * (self.linear + self.quadratic * length)


ATTENTION_ALONE = Cost(0.0, 1.0)


def model_cost(model: ModelConfig) -> Cost:
    """That of a sequence that sees itself: half of the pairs of its tokens, in each layer."""
    one = forward_flops(model, [1])
    return Cost(float(one.matmuls + one.head), model.num_layers * pair_flops(model) / 2)


# ----------------------------------------------------------------------------------------------- filling rows


def fill_rows(sizes: Sequence[int], row_length: int) -> list[Row]:
    """Few rows of `row_length` tokens that hold sequences of these sizes.

    Best fit alone needs one row more than the tokens do in four of ten batches of 128 trajectories, which
    wastes 2.5 %; filling each row as far as it goes nearly always finds the least.

    Raises ValueError when a sequence is longer than a row.
    """
    if sizes and max(sizes) > row_length:
        raise ValueError(f"a sequence of {max(sizes)} tokens does not fit a row of {row_length}")
    least = -(-sum(sizes) // row_length)
    rows = best_fit(sizes, row_length)
    for choices in (16, 8, 32):
        if len(rows) > least:
            rows = min(rows, fullest_rows(sizes, row_length, choices), key=len)
    return rows


def rows_enough(sizes: Sequence[int], row_length: int) -> int:
    """Rows that `fill_rows` never exceeds for as many sequences, each no longer than its counterpart here.

    Those have room in the rows of these, so their least number is no greater; but no heuristic finds the least
    each time, and best fit decreasing is within 11/9 of it plus 4 (Johnson 1973).
    """
    return min(len(sizes), (11 * len(fill_rows(sizes, row_length)) + 36) // 9)


def best_fit(sizes: Sequence[int], row_length: int) -> list[Row]:
    """Best fit decreasing: the longest sequence left goes where it leaves the least room."""
    rows: list[Row] = []
    rooms: list[tuple[int, int]] = []  # (free tokens, row), ascending
    for index in longest_first(sizes):
        size = sizes[index]
        at = bisect.bisect_left(rooms, (size, -1))
        if at == len(rooms):
            rows.append([])
            rooms.append((row_length, len(rows) - 1))
        room, row = rooms.pop(at)
        rows[row].append(index)
        bisect.insort(rooms, (room - size, row))
    return rows


def fullest_rows(sizes: Sequence[int], row_length: int, choices: int) -> list[Row]:
    """Row by row: the longest sequence left, and those that fill its row best.

    They are chosen among `choices` of all that would fit, evenly spread over the lengths: with the longest
    alone, or with all, the short ones that close gaps would be used up before the end.
    """
    left = longest_first(sizes)
    rows: list[Row] = []
    while left:
        rows.append([left.pop(0)])
        room = row_length - sizes[rows[-1][0]]
        while (start := bisect.bisect_left(left, -room, key=lambda i: -sizes[i])) < len(left):
            fitting = len(left) - start
            some = min(choices, fitting)
            places = [start + k * fitting // some for k in range(some)]
            chosen = [places[k] for k in fullest([sizes[left[p]] for p in places], room)]
            rows[-1] += [left[p] for p in chosen]
            room -= sum(sizes[left[p]] for p in chosen)
            for place in reversed(chosen):
                del left[place]
    return rows


def fullest(sizes: Sequence[int], room: int) -> list[int]:
    """Positions, ascending, of the sizes with the greatest sum that is at most `room`.

    Bit s of `reached[i]` says that some of the first i sizes add up to s.
    """
    within = (1 << (room + 1)) - 1
    reached = [1]
    for size in sizes:
        reached.append((reached[-1] | reached[-1] << size) & within)
    total = reached[-1].bit_length() - 1
    chosen = []
    for i in reversed(range(len(sizes))):
        if not reached[i] >> total & 1:
            chosen.append(i)
            total -= sizes[i]
    return chosen[::-1]


def longest_first(sizes: Sequence[float]) -> list[int]:
    """Indices by descending size; of equals, the earlier first."""
    return sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))


# -------------------------------------------------------------------------------------------- balancing shards


def deal(costs: Sequence[float], sizes: Sequence[int], shards: int, room: int) -> list[list[int]] | None:
    """Indices for each shard, at most `room` in size, with nearly equal costs; None when this finds no way.

    The costliest item left goes to the shard with the least so far (LPT).
    """
    dealt: list[list[int]] = [[] for _ in range(shards)]
    spent, free = [0.0] * shards, [room] * shards
    for i in longest_first(costs):
        able = [s for s in range(shards) if free[s] >= sizes[i]]
        if not able:
            return None
        shard = min(able, key=lambda s: spent[s])
        dealt[shard].append(i)
        spent[shard] += costs[i]
        free[shard] -= sizes[i]
    return dealt


def lay_out(
    lengths: Sequence[int],
    row_length: int,
    rows: int,
    shards: int = 1,
    cost: Cost = ATTENTION_ALONE,
    together: bool = True,
) -> list[list[Row]]:
    """Micro-batches of `rows` rows; shard s has rows s * rows / shards ... of each.  Rows may be empty.

    As few micro-batches as `fill_rows` needs.  Whole sequences are dealt to the shards, which then fill their
    rows; where the rows have to be so full that this does not work out, full rows are dealt.  Row slots that
    are left over lie idle in any case, so sequences spread over them where it helps the balance.  With
    `together` False, each sequence has a row of its own.

    Raises ValueError when rows is no multiple of shards.
    """
    if rows % shards:
        raise ValueError(f"rows={rows} of a micro-batch cannot be dealt to {shards} shards")
    sizes = lengths if together else [row_length] * len(lengths)
    packed = fill_rows(sizes, row_length)
    each = rows // shards
    slots = -(-len(packed) // rows) * each  # of a shard
    own = _sequences_by_shard(lengths, sizes, row_length, shards, slots, cost)
    own = own or _rows_by_shard(lengths, packed, shards, slots, cost)
    for shard in own:
        shard.sort(key=lambda row: -sum(lengths[i] ** 2 for i in row))
        shard += [[] for _ in range(slots - len(shard))]
    return [[row for shard in own for row in shard[at : at + each]] for at in range(0, slots, each)]


def _sequences_by_shard(
    lengths: Sequence[int], sizes: Sequence[int], row_length: int, shards: int, slots: int, cost: Cost
) -> list[list[Row]] | None:
    """The rows of each shard when sequences are dealt; None when a shard would need more than `slots`."""
    dealt = deal([cost.of(n) for n in lengths], sizes, shards, slots * row_length)
    if dealt is None:
        return None
    filled = [fill_rows([sizes[i] for i in shard], row_length) for shard in dealt]
    if max(map(len, filled)) > slots:
        return None
    return [[[shard[k] for k in row] for row in rows] for shard, rows in zip(dealt, filled, strict=True)]


def _rows_by_shard(
    lengths: Sequence[int], packed: Sequence[Row], shards: int, slots: int, cost: Cost
) -> list[list[Row]]:
    """The rows of each shard when packed rows are dealt."""
    costs = [sum(cost.of(lengths[i]) for i in row) for row in packed]
    dealt = deal(costs, [1] * len(packed), shards, slots)  # always possible: there are as many slots as rows
    return [[packed[k] for k in shard] for shard in dealt]


# --------------------------------------------------------------------------------------------------- measuring


class Packing(NamedTuple):
    """How well a layout uses the machine.  The share of computed positions with a token in them is
    (1 - padding) * (1 - idle_rows)."""

    padding: float  # share of padding in the rows that are needed: what the packer wastes
    idle_rows: float  # share of row slots beyond the rows that are needed: what the shape of the batch wastes
    imbalance: float  # cost of all sequences of the costliest shard, over the mean of the shards
    waiting: float  # share of the time that shards wait for the slowest of each micro-batch


def measure(
    layout: Sequence[Sequence[Sequence[int]]], row_length: int, shards: int = 1, cost: Cost = ATTENTION_ALONE
) -> Packing:
    """Measures the *lengths* in each row of each micro-batch.  Without sequences: no waste, no imbalance.

    For `waiting`, a row costs what the machine does: matrix products over all positions, used or not, and
    attention, which skips padding.  That is the time of a step if shards meet in each micro-batch.
    """
    lengths = [n for rows in layout for row in rows for n in row]
    if not lengths:
        return Packing(0.0, 0.0, 1.0, 0.0)
    needed = len(fill_rows(lengths, row_length))
    slots = sum(map(len, layout))
    shape = (len(layout), shards, -1)
    work_MxS = np.reshape([sum(map(cost.of, row)) for rows in layout for row in rows], shape).sum(2)
    attention = [sum(n * n for n in row) for rows in layout for row in rows]
    time_MxS = np.reshape(cost.linear * row_length + cost.quadratic * np.array(attention, float), shape).sum(2)
    return Packing(
        padding=1 - sum(lengths) / (needed * row_length),
        idle_rows=1 - needed / slots,
        imbalance=float(work_MxS.sum(0).max() / (work_MxS.sum() / shards)),
        waiting=float(1 - time_MxS.mean(1).sum() / time_MxS.max(1).sum()),
    )
