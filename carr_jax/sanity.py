"""Does a policy that was just loaded predict text at all?  Weights in the wrong place load without an error.

A loader can be wrong in ways that no shape tells: another rotary base, a head that should have been tied, heads
or layers in another order.  Such a model is fluent nonsense, and training on it looks like a bad run.  One
forward pass over a short text tells.  Guessing blindly has a perplexity of about the size V of the vocabulary,
being wrong with confidence a far larger one, knowing only how frequent words are about a thousand in English;
a trained Qwen3 stays below a hundred on plain prose.  What is only a little wrong, such as a rotary base that
is off by a factor of five, is not seen here: that is what the comparison with transformers is for.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import Params, head_matrix, hidden_states
from carr_jax.policy import SAMPLE, Policy

ENGLISH = """\
The ferry left the harbour a little after seven. It was still dark, and the rain that had fallen through \
the night lay in wide puddles on the deck. A boy in a yellow coat stood at the rail and counted the \
lights of the town as they grew smaller. His mother had told him that the crossing would take four hours, \
and that his grandfather would be waiting on the other side with the old dog.

When the sun came up, the sea was grey and almost flat. Two fishermen sat on a bench near the stairs and \
talked about the price of fuel. One of them said that he would sell his boat in the spring if things did \
not get better. The other laughed and answered that he had said the same thing every year since they were \
young.

The boy went inside to look for something to eat. In the small kitchen a woman was making coffee. She \
gave him a piece of bread with cheese and asked him where he was going. "To the island," he said, "to see \
my grandfather. He is eighty years old, and he still climbs up to the lighthouse every day."
"""
LONGEST = 2048  # tokens of a text that are read
_ASSISTANT = re.compile(r"(<\|im_start\|>assistant\n(?:<think>\n)?)(.*?<\|im_end\|>)", re.DOTALL)


@dataclass(frozen=True)
class Reading:
    """What a policy made of one text: perplexity, over so many predicted tokens."""

    text: str
    tokens: int
    perplexity: float


def strict_limit(vocab_size: int) -> float:
    """sqrt(V), half the bits of blind guessing: 390 for Qwen3, ten times what a sound one needs.

    It lies below what mere word frequencies give, so a model that no longer uses its context does not pass.
    """
    return math.sqrt(vocab_size)


def loose_limit(vocab_size: int) -> float:
    """V / 4, hardly better than blind guessing; training may well begin with a poor policy."""
    return vocab_size / 4


def read_text(policy: Policy, name: str, text: str) -> Reading:
    """The policy's perplexity on the first `LONGEST` tokens of a text; NaN when there is nothing to predict.

    In a transcript with assistant turns only what the assistant writes is counted, for nothing else is trained.
    """
    ids, counted = encode(policy, text)
    targets = np.flatnonzero(counted[1:LONGEST]) + 1
    if not targets.size:
        return Reading(name, 0, math.nan)
    nll = _nll(policy.params, policy.model, np.asarray(ids[:LONGEST], np.int32)[None], targets)
    return Reading(name, targets.size, float(np.exp(nll, dtype=np.float64)))


@functools.partial(jax.jit, static_argnums=1)
def _nll(params: Params, config: ModelConfig, ids_1xS: jax.Array, targets_N: jax.Array) -> jax.Array:
    """Mean of -log p(ids[t] | ids[:t]) over the positions t of `targets_N`, fp32."""
    positions = jnp.arange(ids_1xS.shape[1], dtype=jnp.int32)[None]
    hidden = hidden_states(params, config, ids_1xS, positions, jnp.ones_like(ids_1xS))
    logprobs_NxV = jax.nn.log_softmax(hidden[0, targets_N - 1] @ head_matrix(params, config))
    return -jnp.take_along_axis(logprobs_NxV, ids_1xS[0, targets_N, None], axis=1).mean()


def encode(policy: Policy, text: str) -> tuple[list[int], np.ndarray]:
    """(ids, which of them count) of a text; control tokens written in it are control tokens."""
    pieces = _ASSISTANT.split(text)  # before, opening, turn, before, opening, turn, ..., rest
    marked = [(piece, len(pieces) == 1 or i % 3 == 2) for i, piece in enumerate(pieces)]
    encoded = [(policy.tokenizer.encode_control(piece), counts) for piece, counts in marked]
    ids = [i for piece, _ in encoded for i in piece]
    return ids, np.array([counts for piece, counts in encoded for _ in piece], bool)


def own_texts(policy: Policy) -> Iterator[tuple[str, str]]:
    """(name, text) of what the policy should know: its own sample where its folder brings one, and English."""
    if SAMPLE in policy.beside:
        yield SAMPLE, policy.beside[SAMPLE].decode()
    yield "plain English", ENGLISH


def warning(policy: Policy) -> str:
    """What a training loop says of the policy that it begins with; nothing when it predicts at all."""
    return doubt(policy, loose_limit(policy.model.vocab_size))[1]


def doubt(policy: Policy, limit: float, texts: Sequence[tuple[str, str]] = ()) -> tuple[Reading, str]:
    """(the best reading, what is to be said about it: nothing when one text has a perplexity below `limit`).

    One text is enough, because weights in the wrong place predict none.
    """
    readings = []
    for name, text in texts or own_texts(policy):
        readings.append(read_text(policy, name, text))
        if readings[-1].perplexity < limit:
            return readings[-1], ""
    best = min(readings, key=lambda r: r.perplexity)
    return best, (
        f"its perplexity is {best.perplexity:,.0f} on {best.text} ({best.tokens} tokens), where a trained "
        f"policy has less than {limit:,.0f} (and blind guessing {policy.model.vocab_size:,}); likely causes: a "
        "wrong rope_theta, a head tied in config.json but not in the model or the reverse, permuted heads or "
        "layers, the tokenizer of another model, or weights that were never trained"
    )
