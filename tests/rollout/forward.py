"""What an engine should have said: the trainer's own forward pass over a finished sequence."""

import functools
import sys
from pathlib import Path
from unittest import mock

import jax
import numpy as np

from carr_jax.models import qwen3

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from tiny_models import row

_hidden = jax.jit(qwen3.hidden_states, static_argnames="config")


def _padded(n):
    return max(64, 1 << (n - 1).bit_length())


def teacher_forced(params, config, ids, temperature=1.0):
    """log p(ids[t + 1] | ids[: t + 1]) for every t, with a float64 softmax: [len(ids) - 1]."""
    hidden = np.asarray(_hidden(params, config, *row(ids, _padded(len(ids))))[0, : len(ids)], np.float64)
    logits = hidden @ np.asarray(qwen3.head_matrix(params, config), np.float64) / temperature
    top = logits.max(-1, keepdims=True)
    logprobs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return logprobs[np.arange(len(ids) - 1), np.asarray(ids)[1:]]


_seen = []  # the experts of each layer, filled by the forward pass below


@functools.partial(jax.jit, static_argnames="config")
def _spied(params, config, tokens, positions, segments):
    route = qwen3.route

    def spy(*arguments):
        experts, weights = route(*arguments)
        jax.debug.callback(lambda e: _seen.append(np.asarray(e)), experts, ordered=True)
        return experts, weights

    with mock.patch.object(qwen3, "route", spy):  # while this is traced
        return qwen3.hidden_states(params, config, tokens, positions, segments)


def chosen_experts(params, config, ids):
    """The experts that each token of a sequence takes in each layer: int32 [len(ids), L, k]."""
    _seen.clear()
    jax.block_until_ready(_spied(params, config, *row(ids, _padded(len(ids)))))
    jax.effects_barrier()
    return np.stack([experts[0, : len(ids)] for experts in _seen], axis=1).astype(np.int32)
