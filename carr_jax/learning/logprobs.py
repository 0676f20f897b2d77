"""Log-probabilities and entropies of given tokens, without ever holding the logits of all positions.

A 64,000-token row with Qwen3's 151,936 entries would need 39 GB of fp32 logits; a chunk of 1,024 needs 0.6.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax


def token_logprobs(
    hidden_BxSxD: Array, head_DxV: Array, targets_BxS: Array, temperature: float, chunk: int
) -> tuple[Array, Array]:
    """fp32 [B, S] each: log p(target) and the entropy of p = softmax(hidden @ head / temperature).

    At most about `chunk` positions have logits at a time, in the forward and the backward pass.  Chunks are cut
    along S, so that a batch sharded over B stays where it is.  The entropy carries no gradient.
    Raises ValueError for a temperature or chunk that is not positive.
    """
    if not temperature > 0 or chunk < 1:
        raise ValueError(f"temperature={temperature} and logprob_chunk={chunk} must be positive")
    batch, length, width = hidden_BxSxD.shape
    size = min(length, max(1, chunk // batch))
    chunks = -(-length // size)
    padding = chunks * size - length
    hidden = jnp.pad(hidden_BxSxD, ((0, 0), (0, padding), (0, 0))).reshape(batch, chunks, size, width)
    targets = jnp.pad(targets_BxS, ((0, 0), (0, padding))).reshape(batch, chunks, size)

    @jax.checkpoint
    def one_chunk(xs: tuple[Array, Array]) -> tuple[Array, Array]:
        return chunk_logprobs(xs[0], head_DxV, xs[1], temperature)

    outputs = lax.map(one_chunk, (hidden.swapaxes(0, 1), targets.swapaxes(0, 1)))
    logp, entropy = (x.swapaxes(0, 1).reshape(batch, chunks * size)[:, :length] for x in outputs)
    return logp, entropy


def chunk_logprobs(hidden: Array, head_DxV: Array, targets: Array, temperature: float) -> tuple[Array, Array]:
    """`token_logprobs` of [..., D] hidden states at once.

    The head is cast here, inside the chunk, so that its gradient is summed over chunks in the head's own fp32
    and not in bf16.  Logits and log-softmax are fp32 (P16).
    """
    logits = jnp.matmul(
        hidden,
        head_DxV.astype(hidden.dtype),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    logp = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
    chosen = jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
    flat = lax.stop_gradient(logp)
    return chosen, -jnp.sum(jnp.exp(flat) * flat, axis=-1)
