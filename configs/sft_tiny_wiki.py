"""Warm start on question and page files: the shipped policy learns the form of turns on real text.

    python launch/sft.py --config=configs/sft_tiny_wiki.py --config.data.path=DIR --workdir=runs/sft_wiki

Hardware: two CPU cores, about 2 GB, 10 minutes.  Expected: a loss of about 1.3: a million parameters learn to
search, open and cite in real text, but hardly to read it.
"""

from carr_jax import config as defaults
from configs.c_grpo_tiny_wiki import wiki_task
from configs.sft_tiny import tiny_task


def get_config():
    config = defaults.sft()
    tiny_task(config)
    wiki_task(config)
    config.model.policy = "carr_jax/assets/sft_tiny"
    config.learn.lr = 2e-3
    config.learn.weight_decay = 0.01
    config.learn.rows = 2
    config.sft.batch = 4
    config.train.steps = 300
    config.checkpoint.every = 50
    return config
