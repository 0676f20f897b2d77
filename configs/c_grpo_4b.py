"""C-GRPO of Qwen3-4B-Thinking-2507: the recipe of CaRR at its real size.

    python launch/plan.py --config=configs/c_grpo_4b.py --topology=v6e:4x4
    python launch/serve_sglang.py --config=configs/c_grpo_4b.py --policy=DIR
    python launch/calibrate_judge.py --config=configs/c_grpo_4b.py
    python launch/train.py --config=configs/c_grpo_4b.py --config.model.policy=DIR --config.data.path=DIR \\
        "--config.rollout.servers=('http://ADDRESS:30000',)"

`model.policy` is the policy to start from: a Hugging Face folder, or what `configs/sft_4b.py` wrote.
`data.path` holds questions with rubrics and the page corpus.  SGLang servers, one or many, sample the
trajectories; launch/slurm.sh starts them beside the training.  The judge is DeepSeek's, whose key stands in the
environment variable DEEPSEEK_API_KEY; config.judge.budget_usd limits what it may cost (by estimate a few dimes
a step).  Any other OpenAI-compatible endpoint will do: --config.judge.endpoints='("http://HOST:8000/v1",)'.

Hardware of the training: any number of TPU chips or GPUs that eight divides; docs/plans.md has the memory of
each.  The smallest slice that fits is v6e:2x2, with --config.mesh.context=4 --config.model.remat=full.
"""

from carr_jax import config as defaults


def get_config():
    config = defaults.rl()
    full_size(config, context=8)
    config.model.hf_config = "configs/architectures/qwen3_4b.json"  # for plans; training reads the policy's own
    config.agent.context = 64_000
    config.learn.row_length = 65_536  # a multiple of the kernels' blocks
    config.rollout.engine = "sglang"
    llm_judge(config)
    return config


def llm_judge(config):
    """The judge that the CaRR paper trained with; its key is in the environment variable DEEPSEEK_API_KEY."""
    config.judge.kind = "llm"
    config.judge.model = "deepseek-chat"
    config.judge.endpoints = ("https://api.deepseek.com/v1 DEEPSEEK_API_KEY",)
    config.judge.price_prompt = 0.28  # the prices of DeepSeek V3.2; see what they are today
    config.judge.price_cached = 0.028
    config.judge.price_completion = 0.42
    config.judge.at_least = 0.9  # measured by launch/calibrate_judge.py before the first run


def full_size(config, context):
    """What all experiments with real models share; `context` is the number of devices that share a row."""
    config.data.source = "files"
    config.data.train_questions = 0  # all
    config.model.dtype = "bfloat16"
    config.model.remat = "attention"  # at 64k attention is most of the work: it is not computed twice
    config.mesh.fsdp = -1
    config.mesh.context = context
    config.learn.rows = 0
