"""Cold start of Qwen3-30B-A3B-Thinking-2507 on traces, with contexts up to 128,000 tokens.

    python launch/plan.py --config=configs/sft_30b.py --topology=v6e:8x8
    python launch/sft.py --config=configs/sft_30b.py --config.model.policy=DIR --config.data.path=DIR

Three epochs in batches of 16 with learning rate 4e-5.  Hardware: docs/plans.md; 64 v6e chips are enough.
"""

from carr_jax import config as defaults
from configs.c_grpo_4b import full_size


def get_config():
    config = defaults.sft()
    full_size(config, context=16)
    config.model.hf_config = "configs/architectures/qwen3_30b_a3b.json"
    config.model.remat = "full"  # where memory allows it, "attention" takes a quarter less time
    config.agent.context = 128_000
    config.learn.row_length = 131_072
    return config
