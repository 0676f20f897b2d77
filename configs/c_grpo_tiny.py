"""C-GRPO on the built-in world: the whole job, small.

    python launch/train.py --config=configs/c_grpo_tiny.py --workdir=runs/tiny

The warm-started policy opens pages that it does not need, as its teacher did, and then has no room left for
the answer.  Rewards teach it which result to open.

Hardware: two CPU cores, about 2 GB, 11 minutes.  Expected: right answers rise from 0.41 (mean of the first ten
steps) to 0.72 (last ten), connected rubrics from 1.1 to 1.5 of 2.
"""

from carr_jax import config as defaults
from configs.sft_tiny import tiny_task


def get_config():
    config = defaults.rl()
    tiny_task(config)
    config.model.policy = "carr_jax/assets/sft_tiny"
    config.reward.score_everything = True  # the exact judge is free
    config.agent.context = config.learn.row_length = 1152  # room for four calls: who wanders cannot answer
    config.data.train_questions = 64
    config.data.held_out_questions = 64
    config.rollout.prompts = 8
    config.rollout.slots = 64
    config.learn.lr = 2e-4
    config.learn.rows = 2
    config.train.steps = 42
    config.checkpoint.every = 6
    return config
