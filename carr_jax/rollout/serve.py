"""Starts one SGLang server as a child process, from the configuration of the run that will use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from carr_jax.records import InputError
from carr_jax.rollout.engine import EngineError
from carr_jax.rollout.sglang import Capabilities, SGLangServer, open_http

_RESERVED = 7  # tokens of its context length that SGLang does not give to a request
_CPU_REQUESTS = 8  # of full length, whose cache is held in memory on a CPU
_LAST_LINES = 12  # of a server that died
_END_S = 20.0  # seconds that a server has to end when it is told to


def server_command(config: ConfigDict, policy: Path, cpu_launcher: Path | None = None) -> list[str]:
    """The command line of a server for `policy`, with everything that its log-probs depend on.

    It computes in the trainer's type with logits in float32, knows no tokenizer (ids go in and out), and takes
    no sampling defaults from the model's generation_config.json.  `cpu_launcher` starts it on a CPU.
    """
    serve, model = config.serve, json.loads((policy / "config.json").read_text())
    longest = min(config.agent.context + _RESERVED, model["max_position_embeddings"])
    start = [str(cpu_launcher)] if cpu_launcher else ["-m", "sglang.launch_server"]
    options: dict[str, object] = {
        "model-path": policy,
        "host": serve.host,
        "port": serve.port,
        "dtype": config.model.dtype,
        "context-length": longest,
        "random-seed": config.seed,
        "sampling-defaults": "openai",
    }
    if cpu_launcher:
        options |= {"device": "cpu", "attention-backend": "torch_native", "sampling-backend": "pytorch"}
        options |= {"max-total-tokens": _CPU_REQUESTS * longest}
    else:
        options |= {"tp-size": serve.tensor, "ep-size": serve.expert}
        options |= {"mem-fraction-static": serve.memory_fraction}
    if serve.max_running:
        options["max-running-requests"] = serve.max_running
    switches = ["--skip-tokenizer-init"]
    switches += ["--enable-deterministic-inference"] * serve.deterministic
    if not cpu_launcher:
        switches += ["--enable-fp32-lm-head"] * (config.model.dtype != "float32")
        switches += ["--enable-return-routed-experts"] * bool(model.get("num_experts"))
    given = [f"--{name}={value}" for name, value in options.items()]
    return [serve.python or DEFAULT_PYTHON, *start, *given, *switches, *serve.extra]


DEFAULT_PYTHON = ".venv-sglang/bin/python"


def missing_to_serve(config: ConfigDict, policy: Path) -> list[str]:
    """What stands in the way of starting a server, one line each."""
    found, serve = [], config.serve
    if not str(policy) or not (policy / "config.json").is_file():
        found.append(f"--policy: there is no model folder {str(policy)!r} (default: config.model.policy)")
    python = serve.python or DEFAULT_PYTHON
    if not os.access(python, os.X_OK):
        found.append(f"config.serve.python: no interpreter {python}; make venv-sglang makes one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((serve.host, serve.port))
        except OSError as error:
            found.append(f"config.serve.port: {serve.host}:{serve.port}: {error.strerror}; stop what uses it")
    return found


async def run_server(command: Sequence[str], url: str, ready_s: float) -> None:
    """Run a server until it ends or this process is told to; says when it is ready.

    Its output is passed on.  Raises InputError with its last lines when it dies, or is not ready in `ready_s`
    seconds.  The child is always ended.
    """
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    lines: deque[str] = deque(maxlen=_LAST_LINES)
    tasks = [
        asyncio.create_task(work) for work in (_pass_on(child, lines), told.wait(), _announce(url, ready_s))
    ]
    reading, telling, announcing = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if announcing.done():
            announcing.result()  # raises when it took too long
            await asyncio.wait([reading, telling], return_when=asyncio.FIRST_COMPLETED)
        if not telling.done():
            status = await child.wait()
            raise InputError(f"the server ended with status {status}; its last lines:\n" + "\n".join(lines))
    finally:
        for task in tasks:
            task.cancel()
        await _end(child)


async def _pass_on(child: asyncio.subprocess.Process, lines: deque[str]) -> None:
    while raw := await child.stdout.readline():
        lines.append(raw.decode(errors="replace").rstrip())
        print(lines[-1], flush=True)


async def _announce(url: str, ready_s: float) -> None:
    """Print one line when the server has computed something.  Raises InputError after `ready_s` seconds."""
    try:
        async with asyncio.timeout(ready_s), open_http() as http:
            server = SGLangServer(url, http)
            while not await _computes(server):
                await asyncio.sleep(1.0)
            able = await server.capabilities()
    except TimeoutError as error:
        raise InputError(f"the server was not ready after {ready_s:.0f} s (config.serve.ready_s)") from error
    print("\n".join(introduction(url, able)), flush=True)


async def _computes(server: SGLangServer) -> bool:
    with contextlib.suppress(EngineError):
        await server.health_generate(limit_s=30.0)
        return True
    return False


def introduction(url: str, able: Capabilities) -> list[str]:
    """What a person should know of a server that is ready."""
    said = f"ready: {url} (version {able.version}, requests of up to {able.context} tokens)"
    return [said, *(f"{url}: {text}" for text in able.shortcomings())]


async def attach(urls: Sequence[str], context: int) -> list[str]:
    """Look at running servers; returns their introductions.

    Raises InputError that names all those that do not answer, or serve less than `context` tokens.
    """
    async with open_http() as http:
        asked = (SGLangServer(url, http).capabilities() for url in urls)
        answers = await asyncio.gather(*asked, return_exceptions=True)
    problems, lines = [], []
    for url, able in zip(urls, answers, strict=True):
        if isinstance(able, BaseException):
            problems.append(str(able))
        elif able.context < context:
            problems.append(f"{url} serves {able.context} tokens, config.agent.context needs {context}")
        else:
            lines += introduction(url, able)
    if problems:
        raise InputError("; ".join(problems))
    return lines


async def _end(child: asyncio.subprocess.Process) -> None:
    """End a server with its own children; by force when it does not listen."""
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
        try:
            await asyncio.wait_for(child.wait(), _END_S)
        except TimeoutError:
            os.killpg(child.pid, signal.SIGKILL)  # its own group: only what it started
            await child.wait()
