"""P04 to P09 of the group statistics, and the over-length modes."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.learning.advantages import DROPPED, OK, ZERO_SPREAD, group_advantages, over_length_masks

ALL = np.ones(8, bool)


def advantages(rewards):
    return group_advantages(np.array(rewards), np.ones(len(rewards), bool))


def test_std_has_ddof_1():  # P04
    values, status = advantages([1, 0, 0, 0])
    assert status == OK
    np.testing.assert_allclose(values, [1.5, -0.5, -0.5, -0.5], atol=1e-5)


def test_mixed_rewards_of_the_paper():  # the advantages of P10
    np.testing.assert_allclose(advantages([0.85, 0.775, 0, 0])[0], [0.944, 0.784, -0.864, -0.864], atol=5e-4)


def test_small_differences():  # P05
    values, _ = advantages([1, 0.97, 1, 0.97, 1, 1, 1, 1])
    np.testing.assert_allclose(values, [0.54, -1.62, 0.54, -1.62, 0.54, 0.54, 0.54, 0.54], atol=5e-3)


@pytest.mark.parametrize("copies", [2, 7, 8])
@pytest.mark.parametrize("reward", [0.85, 0.35, 1.0, 0.0])
def test_equal_rewards_are_exactly_zero(copies, reward):  # P06
    values, status = advantages([reward] * copies)
    assert status == ZERO_SPREAD
    assert not values.any()


def test_spread_below_the_tolerance_is_zero_spread():
    assert advantages([0.5, 0.5 + 5e-7])[1] == ZERO_SPREAD
    assert advantages([0.5, 0.5 + 2e-6])[1] == OK


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_bounded_centred_and_equal_to_the_textbook(rewards):  # P07
    values, status = advantages(rewards)
    assert np.isfinite(values).all()
    assert abs(values).max() <= (len(rewards) - 1) / math.sqrt(len(rewards)) + 1e-9
    if status == OK:
        mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
        np.testing.assert_allclose(values, [(r - mean) / (std + 1e-6) for r in rewards], atol=1e-7)
        assert abs(values.sum()) < 1e-6


def test_cancellation():  # P07
    values, _ = advantages([0.35] * 7 + [0])
    np.testing.assert_allclose(values, [1 / math.sqrt(8)] * 7 + [-7 / math.sqrt(8)], atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)))
def test_permuting_samples_permutes_the_result(order):  # P08
    rewards = np.array([1, 0, math.nan, 0.3, 0.85, 0.775])
    used = np.array([1, 1, 1, 0, 1, 1], bool)
    direct, _ = group_advantages(rewards, used)
    permuted, _ = group_advantages(rewards[list(order)], used[list(order)])
    np.testing.assert_allclose(permuted, direct[list(order)], atol=1e-12)


def test_unknown_leaves_the_group():  # P09
    values, status = advantages([1, 0, math.nan, 0])
    assert status == OK
    np.testing.assert_allclose(values[[0, 1, 3]], advantages([1, 0, 0])[0])
    assert values[2] == 0


def test_fewer_than_two_known_is_dropped():  # P09
    values, status = advantages([1, math.nan, math.nan])
    assert status == DROPPED and not values.any()
    values, status = group_advantages(np.array([1.0, 0.0, 0.0]), np.array([True, False, False]))
    assert status == DROPPED and not values.any()


def test_group_of_one_is_an_error():
    with pytest.raises(ValueError, match="at least 2"):
        advantages([1.0])


@pytest.mark.parametrize(
    "mode, in_statistics, in_loss",
    [
        ("stats_only", [1, 1, 0, 0], [1, 0, 0, 0]),
        ("train_as_failure", [1, 1, 0, 0], [1, 1, 0, 0]),
        ("drop", [1, 0, 0, 0], [1, 0, 0, 0]),
    ],
)
def test_over_length_modes(mode, in_statistics, in_loss):
    known, over_length = np.array([1, 1, 0, 0], bool), np.array([0, 1, 0, 1], bool)
    got = over_length_masks(known, over_length, mode)
    assert got[0].tolist() == [bool(x) for x in in_statistics]
    assert got[1].tolist() == [bool(x) for x in in_loss]


def test_unknown_over_length_mode():
    with pytest.raises(ValueError, match="stats_only"):
        over_length_masks(ALL, ALL, "keep")
