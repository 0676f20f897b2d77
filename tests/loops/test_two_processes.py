"""Two real processes on this machine train what one trains, and go on after a kill."""

import dataclasses
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import ROOT, finish, start, start_two

from carr_jax.models.config import PRESETS
from carr_jax.models.qwen3 import init_params
from carr_jax.observe.metrics import MetricsLog
from carr_jax.policy import Policy, read_policy, write_policy

STEPS = 3
WEIGHTS = "policy/model.safetensors"


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """A very small policy with the shipped tokenizer."""
    tokenizer = read_policy(ROOT / "carr_jax" / "assets" / "sft_tiny").tokenizer
    size = dict(d_model=32, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=16, d_ff=48)
    model = dataclasses.replace(PRESETS["tiny"], vocab_size=tokenizer.vocab_size, **size)
    folder = tmp_path_factory.mktemp("begin") / "policy"
    write_policy(folder, Policy(model, init_params(model, jax.random.key(0)), tokenizer))
    return folder


def command(workdir: Path, begin: Path, *options: str):
    """The real program, on a small world."""
    return [
        "launch/sft.py",
        "--config=configs/sft_tiny.py",
        f"--workdir={workdir}",
        f"--config.model.policy={begin}",
        "--config.data.train_questions=8",
        "--config.world.entities_per_kind=10",
        "--config.world.distractors=0",
        "--config.world.look_alikes=0",
        "--config.sft.pretrain_steps=0",
        "--config.learn.schedule=constant",
        f"--config.train.steps={STEPS}",
        "--config.checkpoint.every=1",
        *options,
    ]


def succeed(processes):
    results = finish(processes)
    assert [status for status, _ in results] == [0] * len(processes), "\n".join(text for _, text in results)
    return [text for _, text in results]


def test_they_train_what_one_trains_bit_for_bit(tmp_path, begin):
    """The sum of two numbers does not depend on their order, so two devices in one process or two are equal."""
    options = ["--config.mesh.fsdp=2", "--config.learn.rows=2"]
    alone = [start(command(tmp_path / "one", begin, *options), devices=2)]
    first, second = succeed(start_two(command(tmp_path / "two", begin, *options)))
    succeed(alone)
    assert f"step {STEPS}/{STEPS}" in first
    assert "step" not in second, "only the first process speaks"
    one, two = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("one", "two"))
    assert one == two and len(MetricsLog.read(tmp_path / "two" / "metrics.jsonl")) == STEPS
    weights = [tmp_path / name / WEIGHTS for name in ("one", "two")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert weights[0].read_bytes() != (begin / "model.safetensors").read_bytes(), "something was learned"


@pytest.mark.slow
def test_killed_and_started_again_they_end_the_same(tmp_path, begin):
    """On a mesh of data and fsdp, two devices each; the sums of four numbers are added in another order."""
    options = ["--config.mesh.data=2", "--config.mesh.fsdp=2", "--config.learn.rows=4"]
    succeed([start(command(tmp_path / "one", begin, *options), devices=4)])
    succeed(start_two(command(tmp_path / "two", begin, *options), devices=2))
    processes = start_two(command(tmp_path / "killed", begin, *options), devices=2)
    wait_for_checkpoint(processes, tmp_path / "killed" / "checkpoints")
    processes[1].send_signal(signal.SIGTERM)
    assert processes[1].wait(timeout=60) == -signal.SIGTERM
    processes[0].send_signal(signal.SIGKILL)
    finish(processes)
    assert not (tmp_path / "killed" / "policy").exists(), "killed before its end"
    succeed(start_two(command(tmp_path / "killed", begin, *options), devices=2))

    assert (tmp_path / "killed" / WEIGHTS).read_bytes() == (tmp_path / "two" / WEIGHTS).read_bytes()
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("two", "killed")]
    assert logs[0] == logs[1]
    one, two = (read_policy(tmp_path / name / "policy").params for name in ("one", "two"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), one, two)


def wait_for_checkpoint(processes, folder: Path):
    deadline = time.monotonic() + 400
    while all(p.poll() is None for p in processes) and time.monotonic() < deadline:
        if folder.is_dir() and any(child.name.isdigit() for child in folder.iterdir()):
            return
        time.sleep(0.02)
    raise AssertionError([text for _, text in finish(processes)])


def test_all_stop_with_one_message_when_the_policy_was_changed(tmp_path, begin):
    (tmp_path / "changed").mkdir()
    for file in begin.iterdir():
        (tmp_path / "changed" / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "changed" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    results = finish(
        start_two(
            command(tmp_path / "run", tmp_path / "changed", "--config.mesh.fsdp=2", "--config.learn.rows=2")
        )
    )
    for status, text in results:
        assert status == 2
        assert "model.safetensors was changed" in text and "Traceback" not in text
