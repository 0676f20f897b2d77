"""Starts one SGLang server for a run, or looks at servers that are running.

    python launch/serve_sglang.py --config=configs/c_grpo_4b.py --config.serve.tensor=4
    python launch/serve_sglang.py --config=configs/c_grpo_4b.py --attach

The first starts a server that ends with this script (SIGTERM, Ctrl-C), from the section `serve` and all that
engine and trainer must agree on.  --policy=DIR is the folder that it begins with (default config.model.policy):
the run gives it the current weights anyway.  For several servers on one machine, start the script several times
with other CUDA_VISIBLE_DEVICES and --config.serve.port.  --dry-run only shows the command.  The second says
what the servers of config.rollout.servers can do.  Without CUDA, the server runs on the CPU, for trials.
"""

import asyncio
import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # works from a clone that is not installed

from carr_jax.command import end_well, parse
from carr_jax.records import InputError
from carr_jax.rollout.serve import attach, missing_to_serve, run_server, server_command


def split(argv):
    """(this script's own options by name, the arguments for the configuration)."""
    own = ("--attach", "--dry-run", "--policy")
    parts = [a.partition("=") for a in argv]
    return {name: value for name, _, value in parts if name in own}, [
        "".join(part) for part in parts if part[0] not in own
    ]


def serve(argv):
    own, rest = split(argv)
    config, _ = parse(rest)
    if "serve" not in config:
        raise InputError("this configuration has no section serve; give one for reinforcement learning")
    url = f"http://{config.serve.host}:{config.serve.port}"
    if "--attach" in own:
        print("\n".join(asyncio.run(attach(config.rollout.servers or (url,), config.agent.context))))
        return
    policy = Path(own.get("--policy") or config.model.policy)
    if missing := missing_to_serve(config, policy):
        raise InputError("cannot start: " + "; ".join(missing))
    on_cpu = shutil.which("nvidia-smi") is None
    command = server_command(config, policy.absolute(), ROOT / "launch" / "sglang_cpu.py" if on_cpu else None)
    print(shlex.join(command), flush=True)
    if "--dry-run" not in own:
        asyncio.run(run_server(command, url, config.serve.ready_s))


if __name__ == "__main__":
    sys.exit(end_well(lambda: serve(sys.argv), sys.argv[0], "the server has ended"))
