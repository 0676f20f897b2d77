"""Attention by the splash kernel that ships with JAX for TPUs, for packed rows cut over a context axis."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from carr_jax.models.compute import ATTENTION_RESULT
from carr_jax.records import InputError

BLOCK = 1024  # queries, and keys of the forward pass
_BLOCK_COMPUTE = 512
_PARTIAL_BYTES = 2**29  # about the most memory that the partial gradients of the queries may take


class _RowMask(masks._ComputableMask):
    """Causal by the tokens' indices in their row, which for a context axis do not stand in order."""

    def __init__(self, order: np.ndarray) -> None:
        self._shape = (order.size, order.size)
        self.mask_function = _not_later
        self.q_sequence = order

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RowMask) and np.array_equal(self.q_sequence, other.q_sequence)

    def __hash__(self) -> int:
        return hash(self.q_sequence.tobytes())


def _not_later(queries, keys):
    return queries >= keys


@functools.lru_cache(maxsize=8)  # the mask of a 64k row takes seconds to build, and each layer's trace asks
def splash_kernel(order: bytes, heads: int, shards: int, keep: bool, interpret: bool) -> Any:
    """The kernel for rows whose queries stand in `order` (the bytes of an int32 array), `heads` on a device.

    The backward pass is the fused one, with five products for each pair of blocks instead of seven.  It keeps
    one partial gradient of the queries per block of keys: blocks are large, so that there are few.
    """
    indices = np.frombuffer(order, np.int32)
    if indices.size % (shards * min(BLOCK, indices.size // shards)):
        raise InputError(
            f"attention=splash needs rows that are a multiple of {shards} (config.mesh.context) * {BLOCK}, "
            f"config.learn.row_length is {indices.size}; 65,536 is one, or use config.model.attention=blockwise"
        )
    own = min(BLOCK, indices.size // shards)
    keys = min(BLOCK, indices.size)
    wide = backward_keys(indices.size)
    sizes = kernels.BlockSizes(
        block_q=own,
        block_kv=keys,
        block_kv_compute=min(_BLOCK_COMPUTE, keys),
        block_q_dkv=own,
        block_kv_dkv=wide,
        block_kv_dkv_compute=min(_BLOCK_COMPUTE, wide),
        use_fused_bwd_kernel=True,
    )
    # Not jax.ensure_compile_time_eval: in the trace of a derivative (a layer without remat) it makes tracers.
    with jax.core.eval_context():
        return kernels.make_splash_mha(
            masks.MultiHeadMask([_RowMask(indices)] * heads),
            head_shards=1,
            q_seq_shards=shards,
            block_sizes=sizes,
            residual_checkpoint_name=ATTENTION_RESULT if keep else None,
            interpret=interpret,
        )


def splash_spec(kernel: Any, mesh: Mesh | None) -> Any:
    """How the kernel's mask is cut: its queries over the context axis, the same for all heads."""
    if mesh is None:
        return PartitionSpec()
    return kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec(None, "context")))


def splash_attention(heads: int, kernel, q_BxSxHxD, k_BxTxKxD, v_BxTxKxD, own_BxS, row_BxT) -> jax.Array:
    """Attention of a device's queries to its whole rows of keys; [B, S, H, D] in q's dtype.

    The kernel is called for `heads` of them at a time, see `heads_at_once`.
    """
    q = (q_BxSxHxD * q_BxSxHxD.shape[-1] ** -0.5).astype(q_BxSxHxD.dtype)
    _, _, h, d = q.shape
    key_heads = max(heads * k_BxTxKxD.shape[2] // h, 1)  # of one call

    def one_row(q_SxHxD, k_TxKxD, v_TxKxD, own_S, row_T):
        segments = kernels.SegmentIds(own_S, row_T)
        k, v = (x.swapaxes(0, 1).reshape(-1, key_heads, x.shape[0], d) for x in (k_TxKxD, v_TxKxD))
        q = q_SxHxD.swapaxes(0, 1).reshape(k.shape[0], -1, heads, q_SxHxD.shape[0], d)

        def some_heads(xs):
            q, k, v = xs
            return jax.lax.map(lambda q: kernel(q, k, v, segment_ids=segments), q)

        return jax.lax.map(some_heads, (q, k, v)).reshape(h, -1, d).swapaxes(0, 1)

    return jax.vmap(one_row)(q, k_BxTxKxD, v_BxTxKxD, own_BxS, row_BxT).astype(q.dtype)


def backward_keys(length: int) -> int:
    """Keys of a block of the backward pass, a divisor of `length` where that is a multiple of BLOCK.

    In short rows, large blocks on the diagonal waste more; more than 2048 do not fit the fast memory of a v5p.
    """
    return 2 * BLOCK if length >= 64 * BLOCK and length % (2 * BLOCK) == 0 else min(BLOCK, length)


def heads_at_once(length: int, shards: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """How many query heads of a device share a call, so that the partial gradients stay small.

    The backward pass writes, for each block of keys, a gradient of all queries in two bytes a number.
    """
    blocks = length // backward_keys(length)
    per_head = blocks * (length // shards) * head_dim * 2
    group = heads // kv_heads
    whole = [n * group for n in range(kv_heads, 0, -1) if kv_heads % n == 0]  # all queries of some key heads,
    parts = [n for n in range(group - 1, 0, -1) if group % n == 0]  # or some queries of one
    return next((n for n in whole + parts if n * per_head <= _PARTIAL_BYTES), 1)
