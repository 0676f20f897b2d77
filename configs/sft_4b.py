"""Cold start of Qwen3-4B-Thinking-2507 on traces, with contexts up to 128,000 tokens.

    python launch/plan.py --config=configs/sft_4b.py --topology=v6e:4x4
    python launch/collect_sft.py QUESTIONS --config=configs/c_grpo_4b.py --config.model.policy=DIR \\
        --config.agent.context=128000 --config.learn.row_length=131072 --config.data.path=PAGES \\
        --teacher="URL KEY_VARIABLE NAME" --attempts=4 --out=data/traces
    python launch/sft.py --config=configs/sft_4b.py --config.model.policy=DIR --config.sft.traces=data/traces

The traces are those of a larger model that uses our tools, rejection-sampled by outcome and rubric reward (the
CaRR paper had 832 of GLM-4.6).  Three epochs in batches of 16 with learning rate 4e-5; the loss of held-out
traces is measured after each epoch.  What it writes, launch/serve_sglang.py serves and configs/c_grpo_4b.py
starts from; launch/convert.py writes it in bfloat16.  Hardware: docs/plans.md; 16 v6e chips are enough.
"""

from carr_jax import config as defaults
from configs.c_grpo_4b import full_size


def get_config():
    config = defaults.sft()
    full_size(config, context=16)
    config.model.hf_config = "configs/architectures/qwen3_4b.json"
    config.model.remat = "full"  # where memory allows it, "attention" takes a quarter less time
    config.agent.context = 128_000
    config.learn.row_length = 131_072
    config.sft.held_out = 0.02
    return config
