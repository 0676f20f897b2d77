"""E-GRPO baseline on the built-in world: wrong answers earn for gold entities in the thoughts.

    python launch/train.py --config=configs/e_grpo_tiny.py --workdir=runs/e_grpo_tiny

Hardware: two CPU cores, about 2 GB.
"""

from configs import c_grpo_tiny


def get_config():
    config = c_grpo_tiny.get_config()
    config.reward.mix = "e_grpo"  # 1 if right, else alpha * gamma / max gamma
    return config
