"""Warm start of the tiny policy: expert traces in the built-in world, rejection-sampled by the rewards.

    python launch/sft.py --config=configs/sft_tiny.py --workdir=runs/sft_tiny

Hardware: two CPU cores, about 2 GB, 26 minutes.  The policy starts from random weights: for 500 steps it
reads pages of other worlds, which teaches it to copy names, then it learns the traces.  Expected: a loss of
about 0.03 on the sampled tokens.
"""

from carr_jax import config as defaults


def get_config():
    config = defaults.sft()
    tiny_task(config)
    config.data.train_questions = 6900
    config.learn.lr = 3e-3
    config.learn.warmup_steps = 50
    config.learn.weight_decay = 0.01
    config.model.vocab_size = 2560  # each word of a name is one token, with and without a space before it
    config.learn.rows = 2
    config.agent.context = config.learn.row_length = 1152  # the longest trace has about 1100 tokens
    config.train.steps = 2100
    config.sft.batch = 4
    config.sft.pretrain_steps = 500
    config.checkpoint.every = 50
    return config


def tiny_task(config):
    """The world and the limits that every tiny experiment shares."""
    config.world.hops = (2,)
    config.world.look_alikes = 200
    config.search.max_results = 3
    config.search.snippet_chars = 80
    config.search.page_chars = 600
    config.search.find_radius = 60
    config.search.find_limit = 3
    config.agent.context = 1280
    config.agent.turns = 10
    config.agent.tool_calls = 10
    config.agent.turn_tokens = 256
    config.learn.row_length = 1280
    config.learn.logprob_chunk = 1280
