"""The conformance suite against the real SGLang on this machine's CPU: `make test-sglang`.

A small random Qwen3, dense and then a mixture of experts, is written by our exporter, served by SGLang in its
own environment, and put through test_conformance.py.  About three minutes, after an install of as many.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "models")]

from ml_collections import ConfigDict
from processes import free_port
from tiny_models import params_of

from carr_jax.agent.tokenizer import train_bpe
from carr_jax.models.config import ModelConfig
from carr_jax.policy import Policy, write_policy
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


def config(python):
    serve = dict(python=python, host="127.0.0.1", port=free_port(), max_running=0, deterministic=True)
    serve["extra"] = ("--log-level=warning",)
    return ConfigDict(dict(seed=0, model=dict(dtype="float32"), agent=dict(context=1000), serve=serve))


async def passes(policy, settings):
    """Whether the suite passes against a server of `policy`."""
    url = f"http://127.0.0.1:{settings.serve.port}"
    command = server_command(settings, policy, ROOT / "launch" / "sglang_cpu.py")
    serving = asyncio.create_task(run_server(command, url, 600.0))
    try:
        async with open_http() as http:
            while not serving.done() and await _silent(SGLangServer(url, http)):
                await asyncio.sleep(1.0)
        if serving.done():
            serving.result()
        suite = ["-m", "pytest", "-rs", "tests/rollout/test_conformance.py"]
        suite += [f"--sglang-url={url}", f"--sglang-policy={policy}"]
        tests = await asyncio.create_subprocess_exec(sys.executable, *suite, cwd=ROOT)
        return await tests.wait() == 0
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _silent(server):
    try:
        await server.health_generate(limit_s=30.0)
    except Exception:
        return True
    return False


def main(python):
    with tempfile.TemporaryDirectory() as folder:
        for name, model in MODELS.items():
            policy, settings = Path(folder) / name, config(python)
            write_policy(policy, Policy(model, params_of(model), train_bpe(["a few words"], 300)))
            if missing := missing_to_serve(settings, policy):
                sys.exit("cannot start: " + "; ".join(missing))
            print(f"--- {name}", flush=True)
            if not asyncio.run(passes(policy, settings)):
                sys.exit(f"{name}: the suite failed")
    print("dense and moe: the suite passes against the real server")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".venv-sglang/bin/python")
