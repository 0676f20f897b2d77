"""The vocabulary head alone: temporary memory of value and gradient, chunked against all logits at once.

    python benchmarks/head.py [--target=cpu] [--target=v5p] [--dtype=float32] [--chunk=256]

Compiles for 64k tokens on a TPU v5p (needs the libtpu wheel, no TPU) and for 4k tokens on this CPU, both with
Qwen3-4B's width and vocabulary, and runs a small case to compare the numbers.  The bars: at least 150 times
less temporary memory on v5p, 10 times on the CPU, values and gradients equal to 1e-5.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
# The TPU compiler works without a TPU when nobody asks the cloud for one.
os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from carr_jax.learning.logprobs import token_logprobs

WIDTH, VOCABULARY = 2560, 151_936
TOKENS = {"v5p": 65_536, "cpu": 4_096}
BARS = {"v5p": 150, "cpu": 10}
SAME = 1e-5  # largest difference of values and gradients, relative to the largest entry


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", action="append", choices=sorted(TOKENS), help="both, when not given")
    p.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the hidden states")
    p.add_argument("--chunk", type=int, default=256, help="learn.logprob_chunk")
    args = p.parse_args()
    missed = not same_numbers(args.chunk)
    for target in args.target or ("cpu", "v5p"):
        if (device := device_of(target)) is None:
            print(f"{target}: skipped, libtpu is not installed")
            continue
        sizes = [temporary_bytes(head, target, device, args) for head in (full, chunked(args.chunk))]
        ratio = sizes[0] / sizes[1]
        missed |= ratio < BARS[target]
        text = f"full {sizes[0] / 2**30:.2f} GiB, chunked {sizes[1] / 2**30:.3f} GiB"
        print(f"{target}, {TOKENS[target]} tokens: {text}: {ratio:.0f} times less (bar {BARS[target]})")
    sys.exit(missed)


def device_of(target: str) -> jax.Device | None:
    """This machine's CPU, or a TPU that is only compiled for."""
    if target == "cpu":
        return jax.devices()[0]
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=f"{target}:2x2x1").devices[0]
    except (RuntimeError, NotImplementedError, ValueError):
        return None


def full(hidden, head, targets, mask):
    """Log-probs and entropies from the logits of all tokens."""
    logits = jnp.matmul(hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    logp = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
    entropy = lax.stop_gradient(-jnp.sum(jnp.exp(logp) * logp, axis=-1))
    return jnp.where(mask, chosen, 0.0), jnp.where(mask, entropy, 0.0)


def chunked(chunk: int):
    def head(hidden, head, targets, mask):
        return token_logprobs(hidden, head, targets, mask, 1.0, chunk)

    return head


def value_and_gradient(head):
    """Of a weighted sum of the log-probs, by hidden states and head; the entropies beside it."""

    def loss(hidden, matrix, targets, mask, weights):
        logp, entropy = head(hidden, matrix, targets, mask)
        return jnp.sum(logp * weights), (logp, entropy)

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))


def temporary_bytes(head, target: str, device: jax.Device, args: argparse.Namespace) -> int:
    """What the compiled program needs beside its inputs and outputs."""
    sharding, tokens = SingleDeviceSharding(device), TOKENS[target]

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    row = (1, tokens)
    inputs = (
        array((*row, WIDTH), jnp.dtype(args.dtype)),
        array((WIDTH, VOCABULARY), jnp.float32),
        *(array(row, dtype) for dtype in (jnp.int32, jnp.bool_, jnp.float32)),
    )
    return value_and_gradient(head).lower(*inputs).compile().memory_analysis().temp_size_in_bytes


def same_numbers(chunk: int) -> bool:
    """Whether a small case gives the same values and gradients, half of its tokens masked."""
    random = np.random.default_rng(0)
    rows, tokens, width, vocabulary = 2, 300, 128, 5000
    hidden = random.standard_normal((rows, tokens, width), dtype=np.float32)
    matrix = random.standard_normal((width, vocabulary), dtype=np.float32) / width**0.5
    targets = random.integers(0, vocabulary, (rows, tokens), dtype=np.int32)
    mask, weights = random.random((2, rows, tokens)) < 0.5, random.standard_normal((rows, tokens), np.float32)
    inputs = (hidden, matrix, targets, mask[0], weights)
    a, b = (jax.tree.leaves(value_and_gradient(head)(*inputs)) for head in (full, chunked(chunk)))
    worst = max(float(jnp.abs(x - y).max() / jnp.abs(x).max()) for x, y in zip(a, b, strict=True))
    print(f"values and gradients differ by at most {worst:.1e} of the largest entry (bar {SAME:.0e})")
    return worst <= SAME


if __name__ == "__main__":
    main()
