"""A mixture of experts that already knows the task: each expert of a layer begins as the dense MLP."""

import dataclasses

import jax
import numpy as np

from carr_jax.policy import Policy

EXPERTS, CHOSEN = 4, 2


def upcycled(policy, seed=0, noise=0.02):
    """A mixture of experts from a dense policy ("sparse upcycling", arXiv 2212.05055).

    Without `noise`, relative to the size of a matrix, it would give the very same probabilities whichever
    experts are chosen; with some, the choice matters and the policy still answers.  The head is not tied.
    """
    model = dataclasses.replace(
        policy.model,
        d_ff=0,
        tie_embeddings=False,
        num_experts=EXPERTS,
        experts_per_token=CHOSEN,
        d_ff_expert=policy.model.d_ff,
        norm_topk_prob=True,
    )
    rng = np.random.default_rng(seed)
    params = jax.tree.map(np.asarray, policy.params)
    layers = dict(params["layers"])
    dense = layers.pop("mlp")
    moe = {name: _copies(w, rng, noise) for name, w in dense.items()}
    moe["router"] = rng.normal(0, 1, (model.num_layers, model.d_model, EXPERTS)).astype(np.float32)
    moe["router"] *= model.d_model**-0.5
    tree = params | {"layers": layers | {"moe": moe}, "head": params["embedding"].T.copy()}
    return Policy(model, tree, policy.tokenizer)


def _copies(w, rng, noise):
    """[L, a, b] -> [L, E, a, b]."""
    copies = np.repeat(w[:, None], EXPERTS, axis=1)
    return (copies + noise * w.std() * rng.normal(size=copies.shape)).astype(np.float32)
