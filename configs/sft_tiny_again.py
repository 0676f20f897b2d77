"""Second helping of the warm start: goes on from the policy of sft_tiny with traces that it has not seen.

    python launch/sft.py --config=configs/sft_tiny_again.py --workdir=runs/sft_tiny_again

Hardware: two CPU cores, about 2 GB, 18 minutes.  Expected: a loss of about 0.013.  `make sft` runs both.
"""

from configs import sft_tiny


def get_config():
    config = sft_tiny.get_config()
    config.seed = 1  # another order of the questions
    config.model.policy = "runs/sft_tiny/policy"
    config.data.train_questions = 11_000
    config.learn.lr = 2e-3
    config.sft.pretrain_steps = 0
    config.train.steps = 1500
    return config
