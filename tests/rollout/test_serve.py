"""Starting a server: the right command, everything missing at once, and a child that ends with its parent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from standin import StandIn

from carr_jax.records import InputError
from carr_jax.rollout.serve import attach, missing_to_serve, run_server, server_command

ROOT = Path(__file__).parents[2]
CPU = ROOT / "launch" / "sglang_cpu.py"


def config(**serve):
    known = dict(python=sys.executable, host="127.0.0.1", port=30123, tensor=1, expert=1, memory_fraction=0.8)
    known |= dict(max_running=0, deterministic=False, ready_s=60.0, extra=())
    return ConfigDict(
        dict(seed=3, model=dict(dtype="bfloat16"), agent=dict(context=64), serve=dict(known | serve))
    )


def test_the_command_says_what_engine_and_trainer_must_agree_on(folders):
    serve = dict(tensor=4, expert=2, max_running=32, deterministic=True, extra=("--log-level=warning",))
    command = server_command(config(**serve), folders / "moe")
    assert command[:3] == [sys.executable, "-m", "sglang.launch_server"]
    assert {
        f"--model-path={folders / 'moe'}",
        "--tp-size=4",
        "--ep-size=2",
        "--mem-fraction-static=0.8",
        "--max-running-requests=32",
        "--context-length=71",
        "--dtype=bfloat16",
        "--skip-tokenizer-init",
        "--enable-fp32-lm-head",
        "--enable-deterministic-inference",
        "--enable-return-routed-experts",
        "--sampling-defaults=openai",
        "--log-level=warning",
    } <= set(command)
    plain = server_command(config(), folders / "dense", CPU)
    assert plain[1] == str(CPU) and "--device=cpu" in plain and "--max-total-tokens=568" in plain
    assert not {"--enable-return-routed-experts", "--enable-deterministic-inference"} & set(plain)
    long = config()
    long.agent.context = 1000
    assert "--context-length=96" in server_command(long, folders / "dense")  # what the model knows


def test_everything_that_is_missing_is_said_at_once(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = missing_to_serve(config(python="nowhere/python", port=taken.getsockname()[1]), tmp_path)
    policy, python, port = found
    assert "--policy" in policy and str(tmp_path) in policy
    assert "config.serve.python" in python and "make venv-sglang" in python
    assert "config.serve.port" in port and "in use" in port


def test_a_server_that_dies_or_is_never_ready_is_a_clear_error():
    says = [sys.executable, "-c", "print('a line', flush=True); raise SystemExit('CUDA out of memory')"]
    with pytest.raises(InputError, match="status 1; its last lines:\na line\nCUDA out of memory"):
        asyncio.run(run_server(says, "http://127.0.0.1:9", 60.0))
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(InputError, match="not ready after 0 s"):
        asyncio.run(run_server(sleeps, "http://127.0.0.1:9", 0.3))


def test_the_server_ends_with_its_parent(folders):
    """As a person would do it: start, wait for the line, stop; the stand-in plays the server."""
    code = (
        "import asyncio, sys; from carr_jax.rollout.serve import run_server\n"
        "asyncio.run(run_server(sys.argv[2:], sys.argv[1], 120.0))"
    )
    port = 30_000 + os.getpid() % 10_000
    child = [sys.executable, "tests/rollout/standin.py", f"--policy={folders / 'dense'}", f"--port={port}"]
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code, url, *child], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        lines = []
        while not (lines and lines[-1].startswith(f"ready: {url}")):
            lines.append(parent.stdout.readline())
            assert lines[-1], lines
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(30) == 0
    finally:
        parent.kill()
        parent.wait()
    with pytest.raises(InputError, match=url):
        asyncio.run(attach([url], 64))


def test_attaching_says_what_running_servers_can_do(folders):
    async def scenario():
        async with StandIn(folders / "dense", deterministic=False) as server:
            lines = await attach([server.url], 64)
            with pytest.raises(InputError, match="serves 96 tokens, config.agent.context needs 100; .*:9/"):
                await attach([server.url, "http://127.0.0.1:9"], 100)
            return lines

    ready, *shortcomings = asyncio.run(scenario())
    assert "version 0.5.23" in ready and "96 tokens" in ready and len(shortcomings) == 1
