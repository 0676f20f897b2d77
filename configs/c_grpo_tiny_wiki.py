"""C-GRPO on question and page files (2WikiMultihopQA, MuSiQue, HotpotQA rows with evidence), small.

    python launch/train.py --config=configs/c_grpo_tiny_wiki.py --config.data.path=DIR --workdir=runs/wiki

Hardware: two CPU cores, about 2 GB.
"""

from configs import c_grpo_tiny


def get_config():
    config = c_grpo_tiny.get_config()
    config.data.source = "files"
    config.data.train_questions = 0  # all that have rubrics
    config.data.held_out_questions = 16
    config.agent.context = config.learn.row_length = 2048  # real sentences take more of the tiny tokens
    config.learn.rows = 2
    config.train.steps = 10
    return config
