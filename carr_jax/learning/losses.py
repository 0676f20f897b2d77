"""The training losses as sums over tokens; every array is per token, [..., T], on the device.

`weights` is 0 for all that is not a training target and otherwise carries the normaliser (records.TrainBatch),
so micro-batches add up to the loss of the optimiser step whatever the split.  Everything masked is masked at
the input too, because 0 * NaN is NaN in a backward pass (P17).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

LOG_RATIO_LIMIT = 20.0  # exp(20) is finite in fp32 and far outside every clip
BANDS = {"10": (0.9, 1.1), "half": (0.5, 2.0)}  # where the ratio of trainer to engine should lie


class Statistics(NamedTuple):
    """What a loss reports of some tokens: totals that add up and maxima, both name -> fp32 scalar."""

    sums: dict[str, Array]
    maxima: dict[str, Array]


def importance_ratio(new_logp: Array, old_logp: Array, mask: Array) -> Array:
    """rho = pi_new / pi_old, and 1 where masked; the log-ratio is clamped before the exponential."""
    log_ratio = jnp.where(mask, new_logp - old_logp, 0.0)
    return jnp.exp(jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def clipped_objective(ratio: Array, advantage: Array, eps_low: float = 0.2, eps_high: float = 0.28) -> Array:
    """min(rho A, clip(rho, 1 - eps_low, 1 + eps_high) A), to be maximised.

    For A < 0 it is unbounded above in rho (P11): watch `clipped` and `ratio_mean`.
    """
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - eps_low, 1 + eps_high) * advantage)


def is_clipped(ratio: Array, advantage: Array, eps_low: float = 0.2, eps_high: float = 0.28) -> Array:
    """Where `clipped_objective` has no gradient."""
    return ((advantage > 0) & (ratio > 1 + eps_high)) | ((advantage < 0) & (ratio < 1 - eps_low))


def icepop_weight(
    trainer_logp: Array, engine_logp: Array, mask: Array, low: float = 0.5, high: float = 2.0
) -> Array:
    """k = pi_trainer / pi_engine inside [low, high], else 0; a constant for the gradient (IcePop)."""
    k = lax.stop_gradient(importance_ratio(trainer_logp, engine_logp, mask))
    return jnp.where((k >= low) & (k <= high), k, 0.0)


def tis_weight(trainer_logp: Array, engine_logp: Array, mask: Array, cap: float) -> Array:
    """min(k, cap), a constant for the gradient (truncated importance sampling)."""
    k = lax.stop_gradient(importance_ratio(trainer_logp, engine_logp, mask))
    return jnp.minimum(k, cap)


def correction_weight(
    name: str,
    trainer_logp: Array,
    engine_logp: Array,
    mask: Array,
    *,
    icepop_low: float = 0.5,
    icepop_high: float = 2.0,
    tis_cap: float = 2.0,
) -> Array:
    """The trainer/engine correction by its name: "icepop", "tis" or "none" (weight 1)."""
    if name == "icepop":
        return icepop_weight(trainer_logp, engine_logp, mask, icepop_low, icepop_high)
    if name == "tis":
        return tis_weight(trainer_logp, engine_logp, mask, tis_cap)
    if name == "none":
        return jnp.ones_like(trainer_logp)
    raise ValueError(f"ratio_correction={name!r} is not one of icepop, tis, none")


def policy_loss(
    logp: Array,
    old_logp: Array,
    engine_logp: Array,
    entropy: Array,
    advantages: Array,
    weights: Array,
    correction: Array,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
) -> tuple[Array, Statistics]:
    """-sum_t w_t k_t min(rho_t A_t, clip(rho_t) A_t) and the statistics of its tokens (C-GRPO's objective).

    `old_logp` are the *trainer's* log-probs under the policy that sampled: clipping must not act on numerical
    differences to the engine (P12).  With one optimiser step per batch they are stop_gradient(logp), and the
    ratio is exactly 1.  `correction` is k, from `correction_weight`.
    """
    mask = weights != 0
    ratio = importance_ratio(logp, old_logp, mask)
    advantages = jnp.where(mask, advantages, 0.0)
    objective = correction * clipped_objective(ratio, advantages, eps_low, eps_high)
    loss = -jnp.sum(jnp.where(mask, weights * objective, 0.0))
    mismatch = lax.stop_gradient(jnp.where(mask, logp - engine_logp, 0.0))
    per_token = {
        "entropy": entropy,
        "ratio_mean": importance_ratio(logp, engine_logp, mask),
        "icepop_masked": (correction == 0).astype(jnp.float32),
        "clipped": is_clipped(ratio, advantages, eps_low, eps_high).astype(jnp.float32),
        "logprob_diff": jnp.abs(mismatch),
        **{f"ratio_outside_{name}": is_outside(mismatch, *band) for name, band in BANDS.items()},
    }
    return loss, Statistics(_sums(per_token, weights), {"logprob_diff_max": jnp.max(jnp.abs(mismatch))})


def is_outside(log_ratio: Array, low: float, high: float) -> Array:
    """1.0 where exp(log_ratio) lies outside [low, high], or is no number; the ratio as it is, never clamped."""
    inside = (log_ratio >= math.log(low)) & (log_ratio <= math.log(high))
    return (~inside).astype(jnp.float32)


def sequence_outliers(
    logp_RxT: Array, engine_logp_RxT: Array, weights_RxT: Array, segments_RxT: Array
) -> dict[str, Array]:
    """How many sequences have a trained token, and for how many of them trainer and engine disagree as a whole.

    That is when the geometric mean of the ratios of a sequence's trained tokens (the length-normalised sequence
    ratio of GSPO) is outside [0.9, 1.1].  Noise of single tokens averages out, so that one such sequence is a
    sign: the mean log-ratio is, up to noise, minus the KL divergence of the trainer from the engine.
    """
    mask = weights_RxT != 0
    log_ratio = lax.stop_gradient(jnp.where(mask, logp_RxT - engine_logp_RxT, 0.0))
    most = segments_RxT.shape[1] // 2 + 1  # a sequence with a target has two tokens; 0 is padding
    pairs = jnp.stack([log_ratio, mask.astype(jnp.float32)], -1)
    total, count = jnp.moveaxis(
        jax.vmap(lambda x, s: jax.ops.segment_sum(x, s, most))(pairs, segments_RxT), -1, 0
    )
    outlying = is_outside(total / jnp.maximum(count, 1.0), *BANDS["10"])
    return {"sequences": jnp.sum(count > 0.0, dtype=jnp.float32), "sequence_outliers": jnp.sum(outlying)}


def sft_loss(logp: Array, entropy: Array, weights: Array) -> tuple[Array, Statistics]:
    """Weighted negative log-likelihood -sum_t w_t log pi(x_t) and the statistics of its tokens."""
    loss = -jnp.sum(weights * jnp.where(weights != 0, logp, 0.0))
    return loss, Statistics(_sums({"entropy": entropy}, weights), {})


def _sums(per_token: dict[str, Array], weights: Array) -> dict[str, Array]:
    """Totals over the training targets, with their number and their total weight; no gradient."""
    mask = weights != 0
    sums = {k: jnp.sum(jnp.where(mask, v, 0.0)) for k, v in per_token.items()}
    sums |= {"tokens": jnp.sum(mask.astype(jnp.float32)), "weight": jnp.sum(weights)}
    return {k: lax.stop_gradient(v) for k, v in sums.items()}
