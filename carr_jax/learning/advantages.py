"""Group-relative advantages on the host, in float64 (GRPO; DESIGN section 2).

Statistics are taken over one group at a time, so groups of different size never mix.
"""

from __future__ import annotations

import numpy as np

SPREAD_TOLERANCE = 1e-6

OK = "ok"
ZERO_SPREAD = "zero_spread"  # every known reward is the same: no gradient, leave the group out of the batch
DROPPED = "dropped"  # fewer than two known rewards: no baseline


def over_length_masks(known: np.ndarray, over_length: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Which of G samples enter the group statistics and which the loss; both bool [G].

    An unknown sample enters neither.  `mode` decides for over-length ones: "stats_only" (statistics only),
    "train_as_failure" (both), "drop" (neither).  Raises ValueError for another mode.
    """
    known, within = np.asarray(known, bool), ~np.asarray(over_length, bool)
    if mode == "stats_only":
        return known, known & within
    if mode == "train_as_failure":
        return known, known
    if mode == "drop":
        return known & within, known & within
    raise ValueError(f"over_length={mode!r} is not one of stats_only, train_as_failure, drop")


def group_advantages(
    rewards: np.ndarray, in_statistics: np.ndarray, eps: float = 1e-6
) -> tuple[np.ndarray, str]:
    """A_i = (R_i - mean) / (std + eps), std with ddof 1, for one group; float64 [G] and a status.

    `rewards` is [G] with NaN for unknown; only known samples with `in_statistics` give mean and std.  All other
    samples get advantage 0.  The status is OK, ZERO_SPREAD or DROPPED; for the last two every advantage is 0.
    Raises ValueError for a group of one, whose advantage would always be 0.
    """
    rewards = np.asarray(rewards, np.float64)
    if rewards.size < 2:
        raise ValueError(f"a group of {rewards.size} has no baseline: group_size must be at least 2")
    used = np.asarray(in_statistics, bool) & ~np.isnan(rewards)
    advantages = np.zeros_like(rewards)
    if used.sum() < 2:
        return advantages, DROPPED
    values = rewards[used]
    # The test is on max - min: the std of equal fractions is not exactly 0 after rounding (P06).
    if values.max() - values.min() < SPREAD_TOLERANCE:
        return advantages, ZERO_SPREAD
    advantages[used] = _standardise(values, eps)
    return advantages, OK


def _standardise(values: np.ndarray, eps: float) -> np.ndarray:
    """Two passes, because E[x^2] - E[x]^2 cancels badly for rewards that are almost equal (P07)."""
    centred = values - values.mean()
    std = np.sqrt((centred**2).sum() / (values.size - 1))
    return centred / (std + eps)
