"""Cold start of Qwen3-30B-A3B-Thinking-2507 on traces, with contexts up to 128,000 tokens: as the 4B's.

    python launch/plan.py --config=configs/sft_30b.py --topology=v6e:8x8
    python launch/sft.py --config=configs/sft_30b.py --config.model.policy=DIR --config.sft.traces=data/traces

Three epochs in batches of 16 with learning rate 4e-5.  Hardware: docs/plans.md; 64 v6e chips are enough.
"""

from configs import sft_4b


def get_config():
    config = sft_4b.get_config()
    config.model.hf_config = "configs/architectures/qwen3_30b_a3b.json"
    return config
