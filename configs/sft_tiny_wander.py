"""Third helping of the warm start: an expert that wanders, so that the choice of a page is left to rewards.

Twice in five searches it opens another result before the right one.  The policy learns to read still more
worlds, and it learns this habit too, which is for reinforcement learning to undo.

    python launch/sft.py --config=configs/sft_tiny_wander.py --workdir=runs/sft_tiny_wander

Hardware: two CPU cores, about 2 GB, 25 minutes.  Expected: a loss of about 0.015.  `make sft` runs all three.
"""

from configs import sft_tiny_again


def get_config():
    config = sft_tiny_again.get_config()
    config.seed = 2  # another order of the questions
    config.model.policy = "runs/sft_tiny_again/policy"
    config.world.seed = 2000  # and on: other worlds again
    config.sft.wander = 0.4
    config.agent.context = config.learn.row_length = 1472  # a trace that wanders twice has about 1450 tokens
    config.train.steps = 1000
    return config
