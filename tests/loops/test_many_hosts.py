"""Reinforcement learning on two hosts: two real processes train what one trains, through one server.

Token for token; the server's log-probs differ in their last bits with what it decodes together, and so do the
weights.
"""

import functools
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from processes import ROOT, finish, free_port, start, start_two

from carr_jax.observe.metrics import MetricsLog
from carr_jax.observe.viewer import read_trajectories
from carr_jax.policy import read_policy

STEPS, CONTEXT = 3, 1152
POLICY = "carr_jax/assets/sft_tiny"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    """The address of a stand-in for SGLang in a process of its own."""
    port = free_port()
    options = [
        f"--policy={POLICY}",
        f"--port={port}",
        "--deterministic",
        "--slots=12",
        f"--max-length={CONTEXT + 8}",
    ]
    process = subprocess.Popen(
        [sys.executable, "tests/rollout/standin.py", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("ready")
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def command(workdir, server):
    return [
        "launch/train.py",
        "--config=configs/c_grpo_tiny.py",
        f"--workdir={workdir}",
        "--config.mesh.fsdp=2",
        "--config.learn.rows=2",
        f"--config.agent.context={CONTEXT}",
        f"--config.learn.row_length={CONTEXT}",
        "--config.rollout.prompts=2",
        "--config.rollout.group_size=6",
        "--config.rollout.engine=sglang",
        f"--config.rollout.servers=('{server}',)",
        "--config.data.held_out_questions=2",
        "--config.checkpoint.every=1",
        f"--config.train.steps={STEPS}",
    ]


def rows(workdir):
    return MetricsLog.read(workdir / "metrics.jsonl")


def sampled(workdir):
    """The tokens of every trajectory, and what each earned."""
    files = sorted((workdir / "trajectories").glob("*.jsonl.gz"))
    groups = [group for file in files for group in read_trajectories(file)]
    return [
        (t.ids.tolist(), reward) for g in groups for t, reward in zip(g.trajectories, g.rewards, strict=True)
    ]


@pytest.fixture(scope="module")
def alone(server, tmp_path_factory):
    """One process with two devices."""
    workdir = tmp_path_factory.mktemp("runs") / "one"
    ((status, said),) = finish([start(command(workdir, server), devices=2)])
    assert status == 0, said
    assert sum(row["learn/tokens"] > 0 for row in rows(workdir)) >= 2, "there is something to compare"
    return workdir


def same(workdir, alone):
    assert sampled(workdir) == sampled(alone) and len(rows(workdir)) == STEPS
    mine, theirs, begin = (read_policy(f).params for f in (workdir / "policy", alone / "policy", ROOT / POLICY))
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-5)
    jax.tree.map(close, mine, theirs)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), mine, begin)
    assert max(jax.tree.leaves(moved)) > 2e-4, "more was learned than is forgiven here"


def test_two_hosts_train_what_one_trains(server, alone, tmp_path):
    results = finish(start_two(command(tmp_path / "two", server)))
    assert [status for status, _ in results] == [0, 0], results
    assert "held-out" in results[0][1] and "held-out" not in results[1][1], "only the first one acts and speaks"
    same(tmp_path / "two", alone)


def test_killed_on_both_hosts_they_go_on_to_the_same_end(server, alone, tmp_path):
    workdir = tmp_path / "killed"
    processes = start_two(command(workdir, server))
    deadline = time.monotonic() + 200
    while not any(p.name.isdigit() for p in (workdir / "checkpoints").glob("*")):
        assert time.monotonic() < deadline and all(p.poll() is None for p in processes), finish(processes)
        time.sleep(0.05)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    finish(processes)
    assert len(rows(workdir)) < STEPS and not (workdir / "policy").exists(), "killed before its end"
    results = finish(start_two(command(workdir, server)))
    assert [status for status, _ in results] == [0, 0], results
    same(workdir, alone)
