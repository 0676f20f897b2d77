"""Supervised fine-tuning: python launch/sft.py --config=configs/sft_tiny.py --workdir=runs/sft_tiny"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from carr_jax.command import main


def run(config, workdir):
    from carr_jax.sft import finetune  # imports jax, so only after the command line was understood

    finetune(config, workdir)


if __name__ == "__main__":
    sys.exit(main(run, sys.argv))
