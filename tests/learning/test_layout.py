"""Rows, shards and what they waste; the oracles are brute force and values worked out by hand."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.learning import layout as layouts
from carr_jax.learning.layout import Cost, best_fit, deal, fill_rows, fullest, lay_out, measure, model_cost
from carr_jax.models.config import ModelConfig

ROW = 65_536
QWEN3_4B = ModelConfig(151_936, 2560, 36, 32, 8, 128, 9728, 5e6)
QWEN3_30B = ModelConfig(
    151_936,
    2048,
    48,
    32,
    4,
    128,
    0,
    1e7,
    tie_embeddings=False,
    num_experts=128,
    experts_per_token=8,
    d_ff_expert=768,
)
SIZES = st.lists(st.integers(1, 10), max_size=20)


def trajectory_lengths(seed, count=128):
    """Log-normal, 2,000 to 65,536 tokens, of mean 20,000."""
    drawn = np.random.default_rng(seed).lognormal(9.683, 0.7, count)
    return np.clip(drawn, 2_000, ROW).astype(int).tolist()


def lengths_of(layout, lengths):
    return [[[lengths[i] for i in row] for row in rows] for rows in layout]


# ----------------------------------------------------------------------------------------------- filling rows


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=9), st.integers(0, 120))
def test_fullest_is_the_best_subset(sizes, room):
    chosen = fullest(sizes, room)
    subsets = itertools.chain.from_iterable(itertools.combinations(sizes, k) for k in range(len(sizes) + 1))
    assert sum(sizes[i] for i in chosen) == max(s for s in map(sum, subsets) if s <= room)
    assert chosen == sorted(set(chosen))


@settings(max_examples=60, deadline=None)
@given(SIZES)
def test_rows_hold_everything_once(sizes):
    for rows in (best_fit(sizes, 10), fill_rows(sizes, 10), layouts.fullest_rows(sizes, 10, 4)):
        assert sorted(i for row in rows for i in row) == list(range(len(sizes)))
        filled = [sum(sizes[i] for i in row) for row in rows]
        assert all(0 < n <= 10 for n in filled)
        assert sum(n <= 5 for n in filled) <= 1  # two half empty rows would have been one


def test_a_full_row_beats_the_best_fit():
    """Best fit puts 5 with 4 and strands the rest: 4 rows.  By hand: 5 + 3 + 2, 4 + 4 + 2, 4 + 3 + 3 = 30."""
    sizes = [5, 4, 4, 4, 3, 3, 3, 2, 2]
    assert len(best_fit(sizes, 10)) == 4
    assert len(fill_rows(sizes, 10)) == 3


def test_a_sequence_longer_than_a_row_is_an_error():
    with pytest.raises(ValueError, match="a sequence of 11 tokens does not fit a row of 10"):
        fill_rows([3, 11], 10)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.data())
def test_rows_enough_for_shorter_sequences(sizes, data):
    """Fewer tokens may need more rows in a heuristic packing, but never more than promised."""
    shorter = [data.draw(st.integers(1, n)) for n in sizes]
    assert len(fill_rows(shorter, 10)) <= layouts.rows_enough(sizes, 10) <= len(sizes)


# -------------------------------------------------------------------------------------------- balancing shards


def test_deal_by_hand():
    assert deal([5, 4, 3, 3, 1], [1] * 5, 2, 5) == [[0, 3], [1, 2, 4]]
    assert deal([5, 4, 3, 3, 1], [1] * 5, 2, 3) == [[0, 3], [1, 2, 4]]
    assert deal([5, 1, 1, 1], [1] * 4, 2, 2) == [[0, 3], [1, 2]]  # the cheap shard has no room left
    assert deal([2, 1], [3, 3], 1, 5) is None


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 12), max_size=24),
    st.sampled_from([(1, 1), (3, 1), (2, 2), (4, 2), (3, 3)]),
    st.booleans(),
)
def test_layouts_are_whole(lengths, shape, together):
    rows, shards = shape
    layout = lay_out(lengths, 12, rows, shards, Cost(2.0, 0.5), together)
    assert sorted(i for micro in layout for row in micro for i in row) == list(range(len(lengths)))
    assert all(len(micro) == rows for micro in layout)
    assert all(sum(lengths[i] for i in row) <= 12 for micro in layout for row in micro)
    least = len(fill_rows(lengths, 12)) if together else len(lengths)
    assert len(layout) == -(-least // rows)
    if not together:
        assert all(len(row) <= 1 for micro in layout for row in micro)


def test_full_rows_are_dealt_when_sequences_cannot_be():
    """All four rows are full, so no shard can have other sequences than those of two full rows."""
    lengths = [9, 8, 6, 6, 4, 4, 2, 1]
    layout = lay_out(lengths, 10, 2, 2)
    assert lengths_of(layout, lengths) == [[[9, 1], [8, 2]], [[6, 4], [6, 4]]]


def test_rows_of_a_micro_batch_cost_about_the_same():
    lengths = trajectory_lengths(0)
    for shard in zip(*lengths_of(lay_out(lengths, ROW, 16, 16), lengths), strict=True):
        attention = [sum(n * n for n in row) for row in shard]
        assert attention == sorted(attention, reverse=True)


def test_rows_must_be_a_multiple_of_shards():
    with pytest.raises(ValueError, match="rows=6 of a micro-batch cannot be dealt to 4 shards"):
        lay_out([3], 8, 6, 4)


@pytest.mark.parametrize("seed", range(5))
def test_bars_of_waste_and_balance(seed):
    """128 trajectories of 20,000 tokens on average: at most 3 % padding, at most 1.05 over 16 shards."""
    lengths, cost = trajectory_lengths(seed), model_cost(QWEN3_4B)
    packing = measure(lengths_of(lay_out(lengths, ROW, 16, 16, cost), lengths), ROW, 16, cost)
    assert packing.padding <= 0.03 and packing.imbalance <= 1.05
    assert packing.padding >= 0 and packing.imbalance >= 1


def test_the_layout_does_not_depend_on_hash_seeds():
    code = (
        "from carr_jax.learning.layout import *; import random; r = random.Random(0);"
        "print(lay_out([r.randint(1, 90) for _ in range(60)], 100, 4, 2))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": s},
            capture_output=True,
            check=True,
        ).stdout
        for s in "12"
    }
    assert len(outputs) == 1 and len(outputs.pop()) > 100


# --------------------------------------------------------------------------------------------------- measuring


def test_measures_by_hand():
    """Two micro-batches of two shards; the 20 tokens would fill 2 rows (8 + 2, 6 + 4)."""
    layout = [[[8], [6]], [[2], [4]]]
    packing = measure(layout, 10, 2, Cost(3.0, 1.0))
    assert packing.padding == pytest.approx(0)
    assert packing.idle_rows == pytest.approx(2 / 4)
    work = 8 * 11 + 2 * 5, 6 * 9 + 4 * 7
    assert packing.imbalance == pytest.approx(work[0] / (sum(work) / 2))
    slowest, mean = (30 + 64) + (30 + 16), 60 + (64 + 36 + 4 + 16) / 2
    assert packing.waiting == pytest.approx(1 - mean / slowest)


def test_measures_of_padding_and_of_nothing():
    assert measure([[[7, 2], []]], 10).padding == pytest.approx(0.1)
    assert measure([[[7, 2], []]], 10).idle_rows == pytest.approx(0.5)
    assert measure([], 10, 4) == (0.0, 0.0, 1.0, 0.0)


def test_cost_of_the_real_models():
    """GFLOP a token: 4B 7.27 + 0.78 and 19.3 of attention at 65,536 tokens; 30B 5.46 + 0.62 and 25.8."""
    for model, linear, attention in ((QWEN3_4B, 8.05, 19.33), (QWEN3_30B, 6.08, 25.77)):
        cost = model_cost(model)
        assert cost.linear / 1e9 == pytest.approx(linear, abs=0.01)
        assert cost.quadratic * ROW / 1e9 == pytest.approx(attention, abs=0.01)
        assert cost.of(10) == pytest.approx(10 * cost.linear + 100 * cost.quadratic)
