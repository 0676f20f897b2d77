"""From outcome and rubric (or entity) rewards of one group to one mixed reward per trajectory.

Pure NumPy in float64.  Each mode is one equation; `mix_rewards` only looks after what all modes share: who is
known, who failed, and the group maximum.
"""

from __future__ import annotations

import numpy as np

MODES = (
    "carr_paper",
    "carr_released",
    "carr_all_rollouts",
    "carr_no_identification",
    "carr_no_connectivity",
    "carr_component_size",
    "carr_depth_weighted",
    "grpo",
    "e_grpo",
)
# Right ones earn, by the group's best; they differ in how R_r is computed (`carr.rubric_reward`).
OF_MAXIMUM = (
    "carr_paper",
    "carr_no_identification",
    "carr_no_connectivity",
    "carr_component_size",
    "carr_depth_weighted",
)


def share_of_maximum(values: np.ndarray) -> np.ndarray:
    """`x_i / max_j x_j` over a group [G] of values in [0, 1]; all zeros when the maximum is 0 (CaRR eq. 14)."""
    top = values.max(initial=0.0)
    return values / top if top > 0 else np.zeros_like(values)


def gated(outcomes: np.ndarray, bonus: np.ndarray, alpha: float) -> np.ndarray:
    """C-GRPO, CaRR eq. 13: `R_o ((1 - alpha) + alpha bonus)`; a wrong answer earns nothing."""
    return outcomes * ((1 - alpha) + alpha * bonus)


def ungated(outcomes: np.ndarray, bonus: np.ndarray, alpha: float) -> np.ndarray:
    """CaRR's ablation "rubric reward for all rollouts": `(1 - alpha) R_o + alpha bonus`."""
    return (1 - alpha) * outcomes + alpha * bonus


def consolation(outcomes: np.ndarray, bonus: np.ndarray, alpha: float) -> np.ndarray:
    """E-GRPO, arXiv 2510.24694: 1 for a right answer, else `alpha bonus`."""
    return np.where(outcomes > 0, outcomes, alpha * bonus)


def mix_rewards(
    mode: str,
    outcomes: np.ndarray,
    rubrics: np.ndarray,
    entity_matches: np.ndarray,
    known: np.ndarray,
    failed: np.ndarray,
    alpha: float = 0.3,
) -> np.ndarray:
    """The mixed rewards float64 [G] of one group: NaN where unknown, 0 where failed.

    `outcomes`, `rubrics` and `entity_matches` are [G] with values in [0, 1] (what stands at an unknown sample
    is ignored); `rubrics` is NaN where the rubrics were not judged because they cannot change a reward: in the
    modes of `OF_MAXIMUM` a wrong answer that cannot be the group's best.
    `known` and `failed` are bool [G]; failed means a format error or over-length.  The maximum of the group
    runs over all known samples, wrong ones included (CaRR eq. 14).  Raises ValueError for an unknown
    mode, shapes that differ, a value outside [0, 1], or a rubric reward that is missing where it is needed.
    """
    if mode not in MODES:
        raise ValueError(f"reward mix {mode!r} is not one of {', '.join(MODES)}")
    known, failed = np.asarray(known, bool), np.asarray(failed, bool)
    out = np.full(known.shape, np.nan)
    live = known & ~failed
    out[known] = 0.0
    outcomes, rubrics, matches = (
        _checked(name, values, live)
        for name, values in (("outcome", outcomes), ("rubric", rubrics), ("entity match", entity_matches))
    )
    out[live] = _mix(mode, outcomes, rubrics, matches, alpha)
    return out


def _mix(mode: str, outcomes: np.ndarray, rubrics: np.ndarray, matches: np.ndarray, alpha: float) -> np.ndarray:
    """One equation per mode, over the known samples that did not fail."""
    if mode == "grpo":
        return outcomes
    if mode == "e_grpo":
        return consolation(outcomes, share_of_maximum(_judged("entity match", matches)), alpha)
    if mode == "carr_all_rollouts":
        return ungated(outcomes, share_of_maximum(_judged("rubric", rubrics)), alpha)
    right = outcomes > 0
    if not right.any():
        return np.zeros_like(outcomes)
    if mode == "carr_released":  # the public code computes the group maximum and then mixes the raw value
        bonus = np.zeros_like(rubrics)
        bonus[right] = _judged("rubric", rubrics[right])
        return gated(outcomes, bonus, alpha)
    _judged("rubric", rubrics[right])
    return gated(outcomes, share_of_maximum(np.nan_to_num(rubrics, nan=0.0)), alpha)


def _checked(name: str, values: np.ndarray, live: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    if values.shape != live.shape:
        raise ValueError(f"{name} rewards have shape {values.shape}, the group has {live.shape}")
    values = values[live]
    if ((values < 0) | (values > 1)).any():
        raise ValueError(f"{name} rewards must lie in [0, 1], got {values}")
    return values


def _judged(name: str, values: np.ndarray) -> np.ndarray:
    if np.isnan(values).any():
        raise ValueError(f"a {name} reward that this mode needs was not judged: {values}")
    return values
