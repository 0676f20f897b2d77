"""Reinforcement learning: python launch/train.py --config=configs/c_grpo_tiny.py --workdir=runs/tiny"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from carr_jax.command import main


def run(config, workdir):
    from carr_jax.train import train  # imports jax, so only after the command line was understood

    train(config, workdir)


if __name__ == "__main__":
    sys.exit(main(run, sys.argv))
