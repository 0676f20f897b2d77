"""C-GRPO of Qwen3-30B-A3B-Thinking-2507, a mixture of 128 experts.

    python launch/plan.py --config=configs/c_grpo_30b.py --topology=v6e:8x8
    python launch/serve_sglang.py --config=configs/c_grpo_30b.py --policy=DIR --config.serve.tensor=8
    python launch/train.py --config=configs/c_grpo_30b.py --config.model.policy=DIR --config.data.path=DIR \\
        "--config.rollout.servers=('http://ADDRESS:30000',)"

Hardware: any number of TPU chips or GPUs that eight divides, if their memory is enough: see docs/plans.md.
On v6e:4x4 give --config.learn.moments=host --config.model.remat=full.
"""

from configs import c_grpo_4b


def get_config():
    config = c_grpo_4b.get_config()
    config.model.hf_config = "configs/architectures/qwen3_30b_a3b.json"
    return config
