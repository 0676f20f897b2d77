"""Peer: the same optimiser step in google-tunix (its GRPO learner's `update_actor`), fp32, one CPU device.

    python benchmarks/peer_tunix.py --weights=DIR --shape=16x512 [--moe] [--micro=8] [--remat]

DIR is a model folder as train_step.py makes it.  There is no reference model (beta 0) and no old log-probs are
given: tunix then takes its own, as we do.  `--remat` is its DECODER mode, which recomputes whole layers, or
BLOCK (attention only) with `--remat-mode=BLOCK`.  On a CPU its experts have no other path than a dense one, in
which every expert sees every token.
"""

from __future__ import annotations

import common
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from tunix.models.qwen3 import model as qwen3
from tunix.models.qwen3 import params as qwen3_params
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner, TrainExample
from tunix.rl.rollout.base_rollout import RolloutConfig


class Tokenizer:
    """The part of a tokenizer that the learner asks for; no text is read or written here."""

    def encode(self, text: str, **_) -> list[int]:
        return [3 + byte for byte in text.encode()]

    def decode(self, ids, **_) -> str:
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        return 1

    def eos_id(self) -> int:
        return 2

    def pad_id(self) -> int:
        return 0


def main() -> None:
    p = common.parser(__doc__)
    p.add_argument("--remat-mode", default="DECODER", choices=("BLOCK", "DECODER"))
    args = p.parse_args()
    work = common.work_of(args)
    cluster = make_cluster(work, args)
    trainer = cluster.actor_trainer

    norm = 0.0

    def run(ids: np.ndarray, advantages: np.ndarray) -> float:
        nonlocal norm
        parts = [slice(i, i + work.micro) for i in range(0, work.rows, work.micro)]
        cluster.update_actor([example(work, ids[part], advantages[part]) for part in parts], None, False)
        jax.block_until_ready(nnx.state(trainer.model))
        norm = norm or first_norm(trainer.optimizer)
        return norm

    row = common.measure("tunix", work, args.steps, run)
    common.report(row | {"remat_mode": args.remat_mode, "jax": jax.__version__})


def first_norm(optimizer: nnx.Optimizer) -> float:
    """Norm of the gradient that AdamW received in its first step, read from its first moment (1 - b1) g.

    tunix logs the norm of one micro-batch instead.  Below the clip of 1 both are the norm before the clip.
    """
    leaves = jax.tree_util.tree_leaves_with_path(nnx.state(optimizer))
    mu = [leaf for path, leaf in leaves if any(getattr(key, "key", None) == "mu" for key in path)]
    return float(optax.global_norm(mu)) / (1 - common.ADAMW["b1"])


def make_cluster(work: common.Work, args) -> rl_cluster.RLCluster:
    """tunix's trainer around its own Qwen3, with the GRPO loss set by its learner."""
    c = common.ADAMW
    optimizer = optax.chain(
        optax.clip_by_global_norm(c["clip_norm"]),
        optax.adamw(c["lr"], b1=c["b1"], b2=c["b2"], eps=c["eps"], weight_decay=c["weight_decay"]),
    )
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    group = min(work.micro, 8)
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optimizer,
        eval_every_n_steps=10**9,
        max_steps=10**6,
        mini_batch_size=work.rows // group,
        train_micro_batch_size=work.micro // group,
    )
    rollout = RolloutConfig(
        max_tokens_to_generate=work.tokens - work.prompt,
        max_prompt_length=work.prompt,
        kv_cache_size=work.tokens + 8,
        temperature=1.0,
    )
    cluster = rl_cluster.RLCluster(
        actor=load_model(work, args, mesh),
        reference=None,
        tokenizer=Tokenizer(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(
                (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT), mesh
            ),
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=training,
            rollout_config=rollout,
        ),
    )
    algorithm = GRPOConfig(num_generations=group, beta=0.0, epsilon=common.CLIP_LOW, loss_agg_mode="token-mean")
    algorithm.epsilon_high = common.CLIP_HIGH
    GRPOLearner(  # sets the trainer's loss
        rl_cluster=cluster,
        reward_fns=lambda prompts, completions, **_: [0.0] * len(prompts),
        algo_config=algorithm,
    )
    return cluster


def load_model(work: common.Work, args, mesh: Mesh) -> qwen3.Qwen3:
    experts = dict(num_experts=common.EXPERTS, num_experts_per_tok=common.EXPERTS_PER_TOKEN)
    config = qwen3.ModelConfig(
        num_layers=common.LAYERS,
        vocab_size=common.VOCABULARY,
        embed_dim=common.WIDTH,
        hidden_dim=common.EXPERT_MLP if work.moe else common.MLP,
        num_heads=common.HEADS,
        head_dim=common.HEAD_DIM,
        num_kv_heads=common.KV_HEADS,
        rope_theta=int(common.ROPE_THETA),
        norm_eps=common.RMS_EPS,
        use_tied_embedding=True,
        remat_config=qwen3.RematConfig[args.remat_mode if work.remat else "NONE"],
        **(experts if work.moe else {}),
    )
    with mesh:
        return qwen3_params.create_model_from_safe_tensors(str(args.weights), config, mesh, jnp.float32)


def example(work: common.Work, ids: np.ndarray, advantages: np.ndarray) -> TrainExample:
    prompt, completion = ids[:, : work.prompt], ids[:, work.prompt :]
    return TrainExample(
        prompt_ids=jnp.asarray(prompt),
        prompt_mask=jnp.ones(prompt.shape, bool),
        completion_ids=jnp.asarray(completion),
        completion_mask=jnp.ones(completion.shape, bool),
        ref_per_token_logps=None,
        advantages=jnp.asarray(advantages),
        old_per_token_logps=None,
    )


if __name__ == "__main__":
    main()
