"""C-GRPO on question and page files (2WikiMultihopQA, MuSiQue, HotpotQA rows with evidence), small.

    python launch/train.py --config=configs/c_grpo_tiny_wiki.py --config.data.path=DIR --workdir=runs/wiki

The shipped policy was warm-started on the built-in world and is lost in real text.  Begin with
configs/sft_tiny_wiki.py and give --config.model.policy=runs/sft_wiki/policy.

Hardware: two CPU cores, about 2 GB, 4 minutes.  Expected: complete episodes, and hardly a right answer: a
million parameters cannot read real text.  It is the path that a real model takes.
"""

from configs import c_grpo_tiny


def get_config():
    config = c_grpo_tiny.get_config()
    wiki_task(config)
    config.data.held_out_questions = 16
    config.learn.rows = 2
    config.train.steps = 10
    return config


def wiki_task(config):
    """Where the questions come from, and the room that real sentences need in the tiny tokens."""
    config.data.source = "files"
    config.data.train_questions = 0  # all that have rubrics
    config.agent.context = config.learn.row_length = 2048
