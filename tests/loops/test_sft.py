"""Supervised fine-tuning: what is kept, in which order it is learned, and that a stopped run goes on."""

from pathlib import Path

import numpy as np
import pytest

from carr_jax.command import parse
from carr_jax.learning.batch import supervised_example
from carr_jax.lessons import batch_of
from carr_jax.observe.metrics import MetricsLog
from carr_jax.policy import read_policy
from carr_jax.sft import finetune

ROOT = Path(__file__).parents[2]


def small_config(*options):
    arguments = [
        "--config.data.train_questions=12",
        "--config.world.entities_per_kind=20",
        "--config.world.distractors=20",
        "--config.world.look_alikes=4",
        "--config.sft.pretrain_steps=1",
        "--config.sft.pretrain_pages=8",
        "--config.learn.schedule=constant",
        "--config.learn.rows=1",
        "--config.checkpoint.every=1",
        *options,
    ]
    return parse(["sft.py", f"--config={ROOT / 'configs' / 'sft_tiny.py'}", *arguments])[0]


def test_every_example_is_seen_once_in_an_epoch():
    examples = [supervised_example(np.arange(3), np.ones(3), i) for i in range(10)]
    epochs = [[e.group for step in range(5) for e in batch_of(examples, 7, 5 * k + step, 2)] for k in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1], "each epoch has its own order"
    assert epochs[0] == [e.group for step in range(5) for e in batch_of(examples, 7, step, 2)]


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    finetune(small_config("--config.train.steps=3"), tmp_path / "whole")
    finetune(small_config("--config.train.steps=2"), tmp_path / "parts")
    finetune(small_config("--config.train.steps=3"), tmp_path / "parts")
    losses = [
        [row["learn/loss"] for row in MetricsLog.read(tmp_path / run / "metrics.jsonl")]
        for run in ("whole", "parts")
    ]
    assert len(losses[0]) == 3 and losses[0] == losses[1]
    files = [(tmp_path / run / "policy" / "model.safetensors").read_bytes() for run in ("whole", "parts")]
    assert files[0] == files[1]
    policy = read_policy(tmp_path / "whole" / "policy")
    assert policy.model.vocab_size == policy.tokenizer.vocab_size
    assert policy.beside["sample.txt"].startswith(b"<|im_start|>system") and len(policy.beside) == 1
    for name in ("tokenizer.json", "sample.txt"):
        saved = (tmp_path / "whole" / "tokenizer" / name).read_bytes()
        assert saved == (tmp_path / "whole" / "policy" / name).read_bytes()
