"""GRPO baseline on the built-in world: outcome reward only, everything else as in c_grpo_tiny.

    python launch/train.py --config=configs/grpo_tiny.py --workdir=runs/grpo_tiny

Hardware: two CPU cores, about 2 GB.
"""

from configs import c_grpo_tiny


def get_config():
    config = c_grpo_tiny.get_config()
    config.reward.mix = "grpo"  # R = R_o
    return config
