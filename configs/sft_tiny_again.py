"""Second helping of the warm start: goes on from the policy of sft_tiny with traces of many other worlds.

In one world the policy learns facts by heart; where facts differ from trace to trace it has to read.

    python launch/sft.py --config=configs/sft_tiny_again.py --workdir=runs/sft_tiny_again

Hardware: two CPU cores, about 2 GB, 12 minutes.  Expected: a loss of about 0.03.
"""

from configs import sft_tiny


def get_config():
    config = sft_tiny.get_config()
    config.seed = 1  # another order of the questions
    config.model.policy = "runs/sft_tiny/policy"
    config.data.train_questions = 70  # of each world
    config.sft.worlds = 60
    config.world.seed = 1000  # and on: not the world of reinforcement learning
    config.learn.lr = 2e-3
    config.sft.pretrain_steps = 0
    config.train.steps = 1000
    return config
