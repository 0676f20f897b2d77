"""What is missing to start a run, all at once and before any costly work."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from carr_jax.addresses import http_address
from carr_jax.config import flatten, problems, to_json
from carr_jax.gate import gate_problems
from carr_jax.llm.endpoints import missing_keys, parse_endpoint
from carr_jax.records import InputError

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def preflight(config: ConfigDict, workdir: Path) -> list[str]:
    """What is missing to start, all at once and before any costly work: values, files, folders."""
    found = problems(config)
    wanted = {  # files that a folder must hold, each by the names that it may have
        "model.policy": (("config.json",), ("tokenizer.json",), _WEIGHTS),
        "model.tokenizer": (("tokenizer.json",),),
        "data.path": (),
        "search.index.path": (("manifest.json",),),
        "search.index.dense_model": (),
    }
    flat = flatten(config)
    for key, files in wanted.items():
        folder = Path(flat[key])
        if not flat[key]:
            continue
        if not folder.is_dir():
            found.append(f"config.{key}: there is no folder {folder}")
            continue
        for names in files:
            if not any((folder / name).is_file() for name in names):
                found.append(f"config.{key}: {folder} has no {' or '.join(names)}")
    if flat["model.policy"] and (Path(flat["model.policy"]) / "adapter_config.json").is_file():
        found.append(
            f"config.model.policy: {flat['model.policy']} is a LoRA adapter; merge it into its base model"
        )
    if flat["model.hf_config"] and not Path(flat["model.hf_config"]).is_file():
        found.append(f"config.model.hf_config: there is no file {flat['model.hf_config']}")
    servers = [
        f"config.rollout.servers: {address}: {error}; start one with launch/serve_sglang.py"
        for address in flat.get("rollout.servers", ())
        if (error := _silence(address))
    ]
    if config.search.source in ("server", "retrieval"):
        servers += _tool_server_problems(config)
    judge = judge_problems(config, workdir) + gate_problems(config) if "judge" in config else []
    return found + _trace_problems(config) + servers + judge + _workdir_problems(config, workdir)


def _trace_problems(config: ConfigDict) -> list[str]:
    """Folders of traces that are not there; what is in them is looked at when they are read."""
    folders = config.sft.traces.split(",") if "sft" in config and config.sft.traces else ()
    return [f"config.sft.traces: there is no folder {name}" for name in folders if not Path(name).is_dir()]


def _silence(address: str) -> str:
    """Why nobody can be reached at an address, "" when somebody listens; what is there is asked later."""
    if (parts := http_address(address)) is None:
        return "not an address such as http://10.0.0.5:30000"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=5).close()
    except OSError as error:
        return str(error)
    return ""


def _tool_server_problems(config: ConfigDict) -> list[str]:
    """A server that does not listen, and a token that is not set."""
    server, found = config.search.server, []
    if server.url and (error := _silence(server.url)):
        found.append(f"config.search.server.url: {server.url}: {error}; start one with launch/serve_tools.py")
    if server.token and not os.environ.get(server.token):
        found.append(f"config.search.server.token: the environment variable {server.token} is not set")
    return found


def replies_file(config: ConfigDict, folder: Path) -> Path:
    """The cache of an LLM judge's replies: a file of its own, or in the run's folder."""
    return Path(config.judge.cache or folder / "judge" / "replies.sqlite")


def judge_problems(config: ConfigDict, workdir: Path) -> list[str]:
    """What an LLM judge lacks: a record to replay, or keys, and endpoints that listen."""
    if config.judge.kind != "llm":
        return []
    cache = replies_file(config, workdir)
    if config.judge.replay:
        missing = f"config.judge.replay: there is no record {cache}; make one with config.judge.replay=False"
        return [] if cache.is_file() else [missing]
    return endpoint_problems("config.judge.endpoints", config.judge.endpoints)


def endpoint_problems(option: str, endpoints: Sequence[str]) -> list[str]:
    """What endpoints of language models lack, that an option gives: a form, keys, somebody who listens."""
    found = []
    for text in endpoints:
        try:
            endpoint = parse_endpoint(text)
        except InputError as error:
            found.append(f"{option}: {error}")
            continue
        unset = missing_keys(endpoint, os.environ)
        found += [f"{option}: the environment variable {name} is not set" for name in unset]
        if error := _silence(endpoint.url):
            found.append(f"{option}: {endpoint.url}: {error}")
    return found


def _workdir_problems(config: ConfigDict, workdir: Path) -> list[str]:
    """The run folder must be writable and belong to the same experiment when it is resumed."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        probe = workdir / f".writable_{socket.gethostname()}_{os.getpid()}"  # several processes may ask at once
        probe.touch()
        probe.unlink()
    except OSError as error:
        return [f"--workdir={workdir}: cannot be written ({error.strerror})"]
    saved = workdir / "config.json"
    if not saved.exists():
        return []
    before, now = json.loads(saved.read_text())["config"], json.loads(to_json(config))
    changed = sorted(k for k in {*before, *now} if before.get(k) != now.get(k) and k not in _MAY_CHANGE)
    if not changed:
        return []
    return [f"--workdir={workdir} holds another run (other {', '.join(changed[:4])}); choose a new folder"]


# What is no part of the experiment, so that a run may go on with other values.
_MAY_CHANGE = set(
    "train.steps train.trajectories_every checkpoint.every checkpoint.keep judge.endpoints judge.concurrency "
    "judge.key_concurrency judge.queue_s judge.request_s judge.cache judge.replay judge.budget_usd "
    "judge.price_prompt judge.price_cached judge.price_completion judge.at_least judge.calibration "
    "search.server.url search.server.token "
    "search.server.request_s search.server.attempts rollout.servers rollout.weights_folder "
    "rollout.push rollout.request_s rollout.token_s rollout.health_s serve.python serve.host serve.port "
    "serve.tensor serve.expert serve.memory_fraction serve.max_running serve.ready_s".split()
)
