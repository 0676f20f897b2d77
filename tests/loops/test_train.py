"""The main job as a person starts it: a killed run ends like a whole one, and what it trained on is right.

One small run (the shipped policy, two questions a step) is made once and looked at from several sides.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carr_jax.learning.batch import from_trajectory, pack
from carr_jax.learning.logprobs import token_logprobs
from carr_jax.learning.losses import policy_loss
from carr_jax.models.qwen3 import head_matrix, hidden_states
from carr_jax.observe.metrics import MetricsLog
from carr_jax.observe.viewer import read_trajectories
from carr_jax.policy import read_policy

ROOT = Path(__file__).parents[2]
STEPS = 5
ROW = 1152


def command(workdir, steps=STEPS):
    options = [
        "--config=configs/c_grpo_tiny.py",
        f"--workdir={workdir}",
        "--config.rollout.prompts=2",
        "--config.rollout.group_size=6",
        "--config.rollout.slots=12",
        f"--config.agent.context={ROW}",
        f"--config.learn.row_length={ROW}",
        "--config.learn.rows=2",
        "--config.data.held_out_questions=2",
        "--config.checkpoint.every=2",
        f"--config.train.steps={steps}",
    ]
    return [sys.executable, "launch/train.py", *options]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """One CPU device as a user has it, and a compilation cache so that restarts are quick."""
    cache = str(tmp_path_factory.mktemp("compiled"))
    return {
        **os.environ,
        "XLA_FLAGS": "",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory, environment):
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    done = subprocess.run(command(workdir), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "perplexity" not in done.stdout, "the shipped policy is no nonsense"
    return workdir


def rows_without_times(workdir):
    rows = MetricsLog.read(workdir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def test_a_run_leaves_what_the_design_promises(finished):
    for part in ("config.json", "metrics.jsonl", "evaluations.jsonl", "report.html", "trajectory.md", "policy"):
        assert (finished / part).exists(), part
    rows = MetricsLog.read(finished / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for key in DESIGN_KEYS:
        assert all(key in row for row in rows), key
    assert all((row["learn/entropy"] is None) == (row["learn/tokens"] == 0) for row in rows)
    assert [row["step"] for row in MetricsLog.read(finished / "evaluations.jsonl")] == [0, STEPS]
    facts = json.loads((finished / "config.json").read_text())
    assert facts["config"]["train.steps"] == STEPS
    assert facts["versions"]["jax"] and len(facts["weights_sha256"]) == 64


def test_a_checkpoint_can_be_exported_from_the_run_alone(finished, environment, tmp_path):
    """The newest checkpoint is the final policy, so its export is the same folder, byte for byte."""
    options = [f"--from={finished}", f"--to={tmp_path / 'out'}", "--dtype=float32", "--check"]
    done = subprocess.run(
        [sys.executable, "launch/convert.py", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"checkpoint {STEPS} of" in done.stdout and "perplexity 1.0 on sample.txt" in done.stdout
    exported = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert exported == {p.name: p.read_bytes() for p in (finished / "policy").iterdir()}


DESIGN_KEYS = (
    "time/rollout_s time/reward_s time/train_s time/sync_s reward/mixed reward/outcome reward/unknown_rate "
    "reward/zero_spread_groups agent/tool_calls agent/turns agent/tokens agent/generated_tokens agent/finished "
    "agent/format_error agent/over_length agent/tool_error agent/missing_logprobs "
    "learn/loss learn/grad_norm learn/entropy "
    "learn/ratio_mean learn/ratio_outside_10 learn/ratio_outside_half learn/sequence_outliers "
    "learn/icepop_masked learn/clipped learn/tokens learn/padding learn/idle_rows "
    "learn/imbalance learn/waiting judge/calls judge/cached judge/skipped judge/tokens judge/cost_usd "
    "version/policy version/staleness_max"
).split()


def test_something_was_learned_from(finished):
    """Otherwise the tests below would compare runs in which nothing happens."""
    rows = MetricsLog.read(finished / "metrics.jsonl")
    assert sum(row["learn/skipped"] == 0 for row in rows) >= 2
    assert any(row["reward/outcome"] > 0 for row in rows)


def test_killed_at_random_moments_it_ends_bit_for_bit_the_same(finished, environment, tmp_path):
    workdir = tmp_path / "killed"
    rng = random.Random(0)
    kills = 0
    while kills < 4:
        process = subprocess.Popen(
            command(workdir), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        reached = wait_for_step(process, workdir, rng.randrange(4), rng.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        if not reached:
            break
    done = subprocess.run(command(workdir), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows_without_times(workdir) == rows_without_times(finished)
    weights = "policy/model.safetensors"
    assert (workdir / weights).read_bytes() == (finished / weights).read_bytes()
    for file in sorted((finished / "trajectories").iterdir()):
        assert (workdir / "trajectories" / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_same_run_through_a_server_trains_the_same(finished, environment, tmp_path):
    """Seed for seed: the same tokens, and so the same policy up to rounding."""
    policy = ROOT / "carr_jax" / "assets" / "sft_tiny"
    shape = ["--slots=12", f"--max-length={ROW}", "--deterministic"]
    server = subprocess.Popen(
        [sys.executable, "tests/rollout/standin.py", f"--policy={policy}", *shape],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = server.stdout.readline().split()[-1]
        workdir = tmp_path / "http"
        options = ["--config.rollout.engine=sglang", f"--config.rollout.servers=('{address}',)"]
        options += ["--config.rollout.health_s=60", f"--config.rollout.weights_folder={tmp_path / 'weights'}"]
        done = subprocess.run(
            [*command(workdir), *options], cwd=ROOT, env=environment, capture_output=True, text=True
        )
    finally:
        server.kill()
        server.wait()
    assert done.returncode == 0, done.stdout + done.stderr
    for file in sorted((finished / "trajectories").iterdir()):
        there = list(read_trajectories(workdir / "trajectories" / file.name))
        for a, b in zip(read_trajectories(file), there, strict=True):
            assert [t.ids.tolist() for t in a.trajectories] == [t.ids.tolist() for t in b.trajectories]
            assert [t.versions.tolist() for t in a.trajectories] == [
                t.versions.tolist() for t in b.trajectories
            ]
    rows = MetricsLog.read(workdir / "metrics.jsonl")
    assert all((row["learn/logprob_diff"] or 0) < 1e-5 for row in rows)
    one, other = (read_policy(folder / "policy").params for folder in (finished, workdir))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), one, other)


def wait_for_step(process, workdir, more_steps, pause):
    """Until the run has logged `more_steps` more steps than at its start, then `pause` seconds.

    Returns False when it ended by itself before that.
    """
    log = workdir / "metrics.jsonl"

    def logged():
        return log.read_bytes().count(b"\n") if log.exists() else 0

    aim = logged() + more_steps
    deadline = time.monotonic() + 240
    while process.poll() is None and logged() < aim and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(pause)
    return process.poll() is None


# ----------------------------------------------------------------------- what the same run was trained on


@pytest.fixture(scope="module")
def first_groups(finished):
    return list(read_trajectories(finished / "trajectories" / "step_000001.jsonl.gz"))


def test_engine_and_trainer_agree_on_whole_trajectories(first_groups):
    """fp32 log-probs of the engine (cached, batched, in bursts) against one forward pass of the trainer."""
    policy = read_policy(ROOT / "carr_jax" / "assets" / "sft_tiny")
    differences = []
    for trajectory in (t for g in first_groups for t in g.trajectories):
        ids = np.zeros((1, ROW), np.int32)
        n = len(trajectory.ids)
        ids[0, :n] = trajectory.ids
        segments = (np.arange(ROW) < n).astype(np.int32)[None]
        hidden = hidden_states(policy.params, policy.model, ids, np.arange(ROW)[None], segments)
        targets = np.roll(ids, -1, axis=1)
        logprobs, _ = token_logprobs(
            hidden, head_matrix(policy.params, policy.model), targets, np.ones_like(targets, bool), 1.0, ROW
        )
        sampled = np.flatnonzero(trajectory.mask)
        differences.append(np.abs(np.asarray(logprobs)[0, sampled - 1] - trajectory.logprobs[sampled]))
    difference = np.concatenate(differences)
    print(f"engine against trainer: mean {difference.mean():.1e}, max {difference.max():.1e}")
    assert difference.mean() < 1e-4
    assert difference.max() < 2e-3


def test_no_token_of_the_environment_is_a_training_target(first_groups):
    """The gradient of the loss with respect to each log-prob: zero on prompts and observations, exactly."""
    trajectory = max((t for g in first_groups for t in g.trajectories), key=lambda t: len(t.turns))
    assert len(trajectory.turns) > 1, "a real episode with observations"
    batch = pack([from_trajectory(trajectory, 1.0)], ROW, 1, 1, "global_tokens")
    arrays = {k: jnp.asarray(getattr(batch, k)[0]) for k in ("weights", "engine_logprobs", "advantages")}

    def loss(logprobs):
        old = jax.lax.stop_gradient(logprobs)
        ones, zeros = jnp.ones_like(logprobs), jnp.zeros_like(logprobs)
        return policy_loss(
            logprobs,
            old,
            arrays["engine_logprobs"],
            zeros,
            arrays["advantages"],
            arrays["weights"],
            ones,
            eps_low=0.2,
            eps_high=0.28,
        )[0]

    gradient = np.asarray(jax.grad(loss)(jnp.full((1, ROW), -1.0)))[0]
    predicted = np.zeros(ROW, bool)
    predicted[: len(trajectory.ids) - 1] = trajectory.mask[1:] != 0
    assert (gradient[predicted] != 0).all()
    assert (gradient[~predicted] == 0).all()


def test_the_tokens_with_mask_one_are_what_the_policy_wrote(first_groups):
    tokenizer = read_policy(ROOT / "carr_jax" / "assets" / "sft_tiny").tokenizer
    for trajectory in (t for g in first_groups for t in g.trajectories):
        spans = [np.arange(turn.start, turn.end) for turn in trajectory.turns]
        assert np.array_equal(np.flatnonzero(trajectory.mask), np.concatenate(spans))
        for turn in trajectory.turns:
            text = tokenizer.decode(trajectory.ids[turn.start : turn.end].tolist())
            assert text.startswith(turn.thought)
