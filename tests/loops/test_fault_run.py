"""Fifty steps through servers that hang, fail and die: the run ends, nothing is lost, doubled or made up."""

import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from processes import free_port
from test_train import ROOT, environment  # noqa: F401 (a fixture)

from carr_jax.observe.metrics import MetricsLog
from carr_jax.observe.viewer import read_trajectories
from carr_jax.records import End

STEPS, PROMPTS, GROUP, CONTEXT = 50, 2, 4, 1152
KILLS, HANG, FAIL = 10, 0.05, 0.05
POLICY = "carr_jax/assets/sft_tiny"


class Server:
    """A stand-in for SGLang in a process of its own, that can be killed and come back at the same address."""

    def __init__(self, environment):  # noqa: F811
        self.port, self.environment = free_port(), environment
        self.begin()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def begin(self):
        options = [f"--policy={POLICY}", f"--port={self.port}", "--deterministic", "--slots=16"]
        options += [f"--max-length={CONTEXT + 8}", f"--hang={HANG}", f"--fail={FAIL}"]
        self.process = subprocess.Popen(
            [sys.executable, "tests/rollout/standin.py", *options],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait(self):
        assert self.process.stdout.readline().startswith("ready")

    def die(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def servers(environment):  # noqa: F811
    both = [Server(environment), Server(environment)]
    for server in both:
        server.wait()
    yield both
    for server in both:
        server.die()


def command(workdir, servers):
    return [
        sys.executable,
        "launch/train.py",
        "--config=configs/c_grpo_tiny.py",
        f"--workdir={workdir}",
        f"--config.train.steps={STEPS}",
        f"--config.rollout.prompts={PROMPTS}",
        f"--config.rollout.group_size={GROUP}",
        f"--config.data.train_questions={2 * STEPS * PROMPTS}",  # none comes twice
        "--config.data.held_out_questions=0",
        "--config.rollout.engine=sglang",
        f"--config.rollout.servers={tuple(server.url for server in servers)}",
        "--config.rollout.staleness=1",
        "--config.rollout.request_s=8",
        "--config.rollout.token_s=0.02",
        "--config.rollout.health_s=15",  # it does not answer while it compiles
        "--config.checkpoint.every=10",
    ]


def done(workdir):
    path = workdir / "metrics.jsonl"
    return len(MetricsLog.read(path)) if path.exists() else 0


@pytest.fixture(scope="module")
def survived(servers, environment, tmp_path_factory):  # noqa: F811
    """The run: a server is killed and started again after every fourth step, ten times in all."""
    workdir = tmp_path_factory.mktemp("runs") / "faults"
    log = open(workdir.parent / "log", "w")  # noqa: SIM115
    run = subprocess.Popen(command(workdir, servers), cwd=ROOT, env=environment, stdout=log, stderr=log)
    kills = 0
    while run.poll() is None:
        if kills < KILLS and done(workdir) >= 4 * (kills + 1):
            servers[kills % 2].die()
            time.sleep(1.0)
            servers[kills % 2].begin()
            servers[kills % 2].wait()
            kills += 1
        time.sleep(0.2)
    log.close()
    assert run.returncode == 0, (workdir.parent / "log").read_text()[-3000:]
    assert kills == KILLS
    return workdir


def trajectories(workdir):
    """(step, group, i) of every trajectory that was handed out."""
    for step in range(1, STEPS + 1):
        for group in read_trajectories(workdir / "trajectories" / f"step_{step:06d}.jsonl.gz"):
            for i in range(GROUP):
                yield step, group, i


@pytest.mark.slow
def test_training_ends_and_there_were_faults(survived):
    rows = MetricsLog.read(survived / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    total = {
        k: sum(row[f"rollout/{k}"] for row in rows) for k in ("requests", "retries", "ejections", "returns")
    }
    print(total, {k: np.mean([row[k] for row in rows]) for k in ("reward/outcome", "reward/unknown_rate")})
    assert total["retries"] >= 0.8 * (HANG + FAIL) * total["requests"]
    assert total["ejections"] >= KILLS - 1 and total["returns"] >= KILLS - 1
    assert max(row["version/staleness_max"] for row in rows) <= 1
    assert sum(row["learn/skipped"] == 0 for row in rows) >= 10


@pytest.mark.slow
def test_no_trajectory_is_lost_or_doubled(survived):
    """Every group of the stream was trained, in full: what had been decoded and finished was used once."""
    found = Counter((g.question.id, g.trajectories[i].sample) for _, g, i in trajectories(survived))
    assert set(found.values()) == {1}
    assert len({name for name, _ in found}) == STEPS * PROMPTS
    assert len(found) == STEPS * PROMPTS * GROUP


@pytest.mark.slow
def test_no_fault_is_a_reward_of_zero(survived):
    for _, group, i in trajectories(survived):
        t, reward = group.trajectories[i], group.rewards[i]
        assert np.isnan(reward) == (t.end.infrastructure or not group.scores[i].known)
        if reward == 0:
            wrong = t.end is End.ANSWERED and group.scores[i].outcome == 0
            assert wrong or t.end is End.FORMAT_ERROR or t.end.over_length


@pytest.mark.slow
def test_every_token_is_of_the_policy_that_it_says(survived):
    rows = MetricsLog.read(survived / "metrics.jsonl")
    assert all(row["agent/missing_logprobs"] == 0 for row in rows)
    for step, group, i in trajectories(survived):
        t = group.trajectories[i]
        assert set(t.versions[t.mask != 0]) <= {step - 1, step - 2}
    on_policy = [row for row in rows if row["version/staleness_max"] == 0 and row["learn/tokens"]]
    assert all(row["learn/logprob_diff"] < 1e-4 for row in on_policy)
