"""Peer: the same optimiser step in torch with transformers' Qwen3, fp32.

    python benchmarks/peer_torch.py --weights=DIR --shape=16x512 [--moe] [--micro=4] [--remat]

DIR is a model folder as train_step.py makes it.  Attention is torch's fused kernel (`sdpa`), experts are
grouped matrix products (`grouped_mm`), AdamW is fused, and only the completion's positions get logits: each the
fastest that this version has on a CPU.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import common
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM


def main() -> None:
    p = common.parser(__doc__)
    p.add_argument("--experts", default="grouped_mm", choices=("grouped_mm", "batched_mm", "eager"))
    args = p.parse_args()
    work = common.work_of(args)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    kernels = dict(attn_implementation="sdpa") | (dict(experts_implementation=args.experts) if work.moe else {})
    model = AutoModelForCausalLM.from_pretrained(args.weights, dtype=torch.float32, **kernels).train()
    if work.remat:
        model.gradient_checkpointing_enable()
    optimizer = adamw(model)

    def run(ids: np.ndarray, advantages: np.ndarray) -> float:
        ids, advantages = torch.from_numpy(ids).long(), torch.from_numpy(advantages)
        for rows in range(0, work.rows, work.micro):
            part = slice(rows, rows + work.micro)
            (loss_sum(model, work, ids[part], advantages[part]) / work.trained).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), common.ADAMW["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm.item()

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    common.report(common.measure("torch", work, args.steps, run) | versions)


def loss_sum(model, work: common.Work, ids: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """-sum of min(rho A, clip(rho) A) over the completions, with rho = pi / stop_gradient(pi)."""
    kept = work.tokens - work.prompt + 1
    logits = model(ids, logits_to_keep=kept, use_cache=False).logits[:, :-1].reshape(-1, common.VOCABULARY)
    logp = -torch.nn.functional.cross_entropy(logits, ids[:, work.prompt :].reshape(-1), reduction="none")
    logp = logp.reshape(len(ids), -1)
    ratio = torch.exp(logp - logp.detach())
    a = advantages[:, None]
    clipped = ratio.clamp(1 - common.CLIP_LOW, 1 + common.CLIP_HIGH)
    return -torch.minimum(ratio * a, clipped * a).sum()


def adamw(model) -> torch.optim.Optimizer:
    """AdamW in torch's fused kernel; weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    c = common.ADAMW
    groups = [dict(params=matrices, weight_decay=c["weight_decay"]), dict(params=vectors, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=c["lr"], betas=(c["b1"], c["b2"]), eps=c["eps"], fused=True)


if __name__ == "__main__":
    main()
