"""Cold start of the E-GRPO paper (arXiv 2510.24694): Qwen3-30B-A3B, 11,000 traces, contexts up to 32k.

    python launch/sft.py --config=configs/sft_e_grpo.py --config.model.policy=DIR --config.sft.traces=FOLDER

Batches of 32, a cosine from 5e-6 after a linear warm-up over a fifth of an epoch, 4.8 epochs; both numbers of
steps are those of 11,000 traces.  Collect them as configs/sft_4b.py says, with --config.agent.context=32000 and
--config.agent.tool_calls=40.  Hardware: docs/plans.md has that of longer contexts; 64 v6e chips are enough.
"""

from configs import sft_30b


def get_config():
    config = sft_30b.get_config()
    config.agent.context = 32_000
    config.agent.tool_calls = 40
    config.learn.row_length = 32_768
    config.learn.lr = 5e-6
    config.learn.schedule = "cosine"
    config.learn.warmup_steps = 69  # 0.2 epochs of 344 steps
    config.sft.batch = 32
    config.train.steps = 1650  # 4.8 epochs
    return config
