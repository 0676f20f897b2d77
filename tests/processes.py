"""Starts several real processes of this machine together, for tests."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAIT_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(arguments, devices=1, **environment) -> subprocess.Popen:
    """A Python process on `devices` CPU devices whose output, both streams in one, can be read.

    Compiled without optimisation: these programs are small, and compiling them takes most of their time.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
        **environment,
    }
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(processes) -> list[tuple[int, str]]:
    """(exit status, output) of each; none is left behind."""
    try:
        outputs = [p.communicate(timeout=WAIT_S)[0] for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(p.returncode, output) for p, output in zip(processes, outputs, strict=True)]


def start_two(arguments, devices=1, **environment) -> list[subprocess.Popen]:
    """Two processes of the same command that train together."""
    flags = [f"--coordinator=127.0.0.1:{free_port()}", "--processes=2"]
    return [start([*arguments, *flags, f"--process={i}"], devices, **environment) for i in range(2)]
