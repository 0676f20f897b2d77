"""Do engine and trainer mean the same policy?  Asked before the first step, where their ratio must be 1.

A run whose engine samples from another distribution than the trainer thinks learns from the difference, and
looks healthy for a while.  A few short turns show it: temperature, truncated sampling, weights, number formats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from carr_jax.agent.buffer import Buffer
from carr_jax.agent.episode import check_generation
from carr_jax.learning.batch import Example, from_trajectory
from carr_jax.records import End, Sampling
from carr_jax.rollout.engine import Engine

TURNS = 2  # the second follows a cached prefix, a sampled turn and an observation


@dataclass(frozen=True)
class Agreement:
    """|log-prob of the trainer - of the engine| over `tokens` of `sampled` tokens; the others have none.

    `ratio` is the mean of trainer / engine.  An engine that samples freely, from whatever distribution, has 1
    on average; one that draws from a part of the trainer's distribution, the mass of that part (P14).
    """

    mean_abs: float
    max_abs: float
    ratio: float
    tokens: int
    sampled: int
    temperature: float

    def problem(self, limit: float) -> str:
        """What is wrong when the mean difference is above `limit` or unknown, in one line; else ""."""
        if not self.tokens:
            return f"the engine gave no log-prob for any of {self.sampled} tokens: it cannot be trained with"
        if self.mean_abs <= limit:
            return ""
        return (
            f"before any training, log-probs of trainer and engine differ by {self.mean_abs:.3g} on average, "
            f"at most {self.max_abs:.3g}, over {self.tokens} tokens; the limit is {limit:g}. Does the engine "
            f"apply temperature {self.temperature:g}, without top-p, top-k, min-p or penalties (the mean ratio "
            f"is {self.ratio:.3f}; well below 1 speaks for those)? Does it have the same weights, and compute "
            "in the same dtype?"
        )


async def check_agreement(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    compare: Callable[[list[Example]], Mapping[str, float]],
) -> Agreement:
    """Samples `TURNS` turns after each prompt, and compares their log-probs with the trainer's.

    `compare` gives what `learning.compare` says of examples.  Between the turns stands the prompt once more, as
    an observation, so that 2 * (prompt + max_tokens) tokens must fit.  Raises what the engine raises, and
    ValueError when it breaks its contract.
    """
    seeds = range(sampling.seed, sampling.seed + len(prompts))
    examples = await asyncio.gather(
        *(
            _sample(engine, prompt, replace(sampling, seed=seed))
            for prompt, seed in zip(prompts, seeds, strict=True)
        )
    )
    found = compare([example for example, _ in examples])
    return Agreement(
        found["logprob_diff"],
        found["logprob_diff_max"],
        found["ratio_mean"],
        int(found["tokens"]),
        sum(sampled for _, sampled in examples),
        sampling.temperature,
    )


async def _sample(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> tuple[Example, int]:
    """A conversation that means nothing, and how many of its tokens were sampled."""
    session = f"agreement/{sampling.seed}"
    buffer = Buffer.of_prompt(prompt)
    try:
        for turn in range(TURNS):
            if turn:
                buffer.append_context(prompt)
            generation = await engine.generate(buffer.ids[:], sampling, session)
            check_generation(generation, sampling)
            buffer.append_sampled(generation)
    finally:
        await engine.release(session)
    trajectory = buffer.trajectory(session, 0, End.ANSWERED)
    return from_trajectory(trajectory, 1.0), trajectory.generated_tokens
