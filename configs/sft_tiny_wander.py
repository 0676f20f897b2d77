"""Third helping of the warm start: an expert that wanders, so that the choice of a page is left to rewards.

python launch/sft.py --config=configs/sft_tiny_wander.py --workdir=runs/sft_tiny_wander
"""

from configs import sft_tiny_again


def get_config():
    config = sft_tiny_again.get_config()
    config.seed = 2
    config.model.policy = "runs/sft_tiny_again/policy"
    config.world.seed = 2000
    config.sft.wander = 0.4
    config.agent.context = config.learn.row_length = 1472  # a trace that wanders twice has about 1450 tokens
    config.train.steps = 1000
    return config
