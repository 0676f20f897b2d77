"""Against the real SGLang on this machine's CPU, dense and a mixture of experts: `make test-sglang`.

First a small random Qwen3 is written by our exporter, served by SGLang in its own environment, and put through
test_conformance.py.  Then a policy that knows the task is trained with C-GRPO for five steps, sampled by the
server and with its weights renewed after each.  About ten minutes, after an install of three.
"""

import asyncio
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "models")]

from ml_collections import ConfigDict
from processes import free_port
from tiny_models import params_of
from upcycled import upcycled

from carr_jax.agent.tokenizer import train_bpe
from carr_jax.models.config import ModelConfig
from carr_jax.observe.metrics import MetricsLog
from carr_jax.observe.viewer import read_trajectories
from carr_jax.policy import Policy, read_policy, write_policy
from carr_jax.rollout.serve import missing_to_serve, run_server, server_command
from carr_jax.rollout.sglang import SGLangServer, open_http

SHAPE = dict(vocab_size=2048, d_model=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32)
SHAPE |= dict(rope_theta=1e6, max_position=1024)
MODELS = {
    "dense": ModelConfig(**SHAPE, d_ff=128),
    "moe": ModelConfig(  # untied, as the real ones: SGLang does not tie the head of a mixture of experts
        **SHAPE,
        d_ff=0,
        tie_embeddings=False,
        num_experts=8,
        experts_per_token=2,
        d_ff_expert=32,
        norm_topk_prob=True,
    ),
}


STEPS, CONTEXT = 5, 1152
MISMATCH = 1e-4  # mean |log-prob difference| of server and trainer in float32


def config(python, context):
    serve = dict(python=python, host="127.0.0.1", port=free_port(), max_running=0, deterministic=True)
    serve["extra"] = ("--log-level=warning",)
    return ConfigDict(dict(seed=0, model=dict(dtype="float32"), agent=dict(context=context), serve=serve))


@asynccontextmanager
async def serving(policy, settings):
    """The address of a server of `policy`, as long as it is needed."""
    if missing := missing_to_serve(settings, policy):
        sys.exit("cannot start: " + "; ".join(missing))
    url = f"http://127.0.0.1:{settings.serve.port}"
    command = server_command(settings, policy, ROOT / "launch" / "sglang_cpu.py")
    server = asyncio.create_task(run_server(command, url, 600.0))
    try:
        async with open_http() as http:
            while not server.done() and await _silent(SGLangServer(url, http)):
                await asyncio.sleep(1.0)
        if server.done():
            server.result()
        yield url
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


async def _silent(server):
    try:
        await server.health_generate(limit_s=30.0)
    except Exception:
        return True
    return False


async def run(*arguments):
    process = await asyncio.create_subprocess_exec(sys.executable, *map(str, arguments), cwd=ROOT)
    if await process.wait():
        sys.exit(f"failed: {' '.join(map(str, arguments))}")


async def conform(policy, settings):
    """The suite that stand-in and embedded engine pass, too."""
    async with serving(policy, settings) as url:
        suite = ["-m", "pytest", "-rs", "tests/rollout/test_conformance.py"]
        await run(*suite, f"--sglang-url={url}", f"--sglang-policy={policy}")


async def train(policy, settings, workdir):
    """C-GRPO as a person starts it."""
    async with serving(policy, settings) as url:
        options = [f"--workdir={workdir}", f"--config.model.policy={policy}", f"--config.train.steps={STEPS}"]
        options += ["--config.rollout.engine=sglang", f"--config.rollout.servers=('{url}',)"]
        options += ["--config.rollout.prompts=4", "--config.data.held_out_questions=0"]
        await run("launch/train.py", "--config=configs/c_grpo_tiny.py", *options)


def check(workdir):
    """Something was learned, from tokens of known weights that engine and trainer agree on; what was seen."""
    rows = MetricsLog.read(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    mismatch = [row["learn/logprob_diff"] for row in rows if row["learn/tokens"]]
    assert len(mismatch) >= 2, "no group had any spread"
    assert max(mismatch) < MISMATCH, mismatch
    assert all(row["agent/missing_logprobs"] == 0 for row in rows)
    assert all(row["rollout/updates"] >= 1 for row in rows), "each step renews the weights"
    for step in range(1, STEPS + 1):
        for group in read_trajectories(workdir / "trajectories" / f"step_{step:06d}.jsonl.gz"):
            for t in group.trajectories:
                assert set(t.versions[t.mask != 0]) <= {step - 1}, (step, np.unique(t.versions))
    return f"mean |log-prob difference| {min(mismatch):.2g} to {max(mismatch):.2g} in {len(mismatch)} steps"


def main(python):
    said = []
    tiny = read_policy(ROOT / "carr_jax" / "assets" / "sft_tiny")
    trained = {"dense": tiny, "moe": upcycled(tiny)}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, model in MODELS.items():
            print(f"--- {name}: the conformance suite", flush=True)
            write_policy(root / name, Policy(model, params_of(model), train_bpe(["a few words"], 300)))
            asyncio.run(conform(root / name, config(python, 1000)))
        for name, policy in trained.items():
            print(f"--- {name}: C-GRPO", flush=True)
            write_policy(root / f"tiny_{name}", policy)
            asyncio.run(train(root / f"tiny_{name}", config(python, CONTEXT), root / f"run_{name}"))
            said.append(f"{name}: {check(root / f'run_{name}')}")
    print("the suite passes against the real server, dense and moe", *said, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".venv-sglang/bin/python")
