"""Supervised fine-tuning: what is kept, in which order it is learned, and that a stopped run goes on."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from carr_jax.command import parse
from carr_jax.learner import Learner
from carr_jax.learning.batch import supervised_example
from carr_jax.lessons import batch_of, divided, load_lessons
from carr_jax.observe.metrics import MetricsLog
from carr_jax.policy import read_policy
from carr_jax.records import End, InputError, Trajectory
from carr_jax.run import RunFolder
from carr_jax.sft import finetune
from carr_jax.teaching import Options, run_collection

ROOT = Path(__file__).parents[2]
SMALL = [
    "--config.data.train_questions=12",
    "--config.world.entities_per_kind=20",
    "--config.world.distractors=20",
    "--config.world.look_alikes=4",
]


def small_config(*options):
    arguments = [
        "--config.sft.pretrain_steps=1",
        "--config.sft.pretrain_pages=8",
        "--config.learn.schedule=constant",
        "--config.learn.rows=1",
        "--config.checkpoint.every=1",
        *options,
    ]
    return parse(["sft.py", f"--config={ROOT / 'configs' / 'sft_tiny.py'}", *SMALL, *arguments])[0]


def on_traces(folder, *options):
    tokenizer = f"--config.model.tokenizer={ROOT / 'carr_jax' / 'assets' / 'sft_tiny'}"
    return small_config(f"--config.sft.traces={folder}", tokenizer, *options)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A folder of expert traces, as launch/collect_sft.py makes it."""
    folder = tmp_path_factory.mktemp("traces")
    policy = f"--config.model.policy={ROOT / 'carr_jax' / 'assets' / 'sft_tiny'}"
    file = f"--config={ROOT / 'configs' / 'c_grpo_tiny.py'}"
    config = parse(["collect_sft.py", file, policy, *SMALL])[0]
    asyncio.run(run_collection(Options(Path("world"), folder, "expert"), config, "c"))
    return folder


class Quiet:
    def print(self, *_, **__):
        pass


def test_every_example_is_seen_once_in_an_epoch():
    examples = [supervised_example(np.arange(3), np.ones(3), i) for i in range(10)]
    epochs = [[e.group for step in range(5) for e in batch_of(examples, 7, 5 * k + step, 2)] for k in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1], "each epoch has its own order"
    assert epochs[0] == [e.group for step in range(5) for e in batch_of(examples, 7, step, 2)]


def test_held_out_are_whole_questions():
    none = np.zeros(2, np.int32)
    traces = [Trajectory(f"q{i // 2}", i, 1, none, none, none, none, (), End.ANSWERED) for i in range(20)]
    learned, held_out = divided(traces, 0.3, seed=0)
    names = [{traces[e.group].question_id for e in part} for part in (learned, held_out)]
    assert (len(learned), len(held_out)) == (14, 6) and not names[0] & names[1]
    assert [e.group for e in held_out] == [e.group for e in divided(traces, 0.3, seed=0)[1]]
    assert divided(traces, 0.0, seed=0)[1] == []


def test_traces_of_a_folder_are_learned_as_they_stand(traces):
    """The mask is the episode's: what the expert said, and neither prompts nor outputs of tools."""
    lessons = load_lessons(on_traces(traces), Quiet())
    assert len(lessons.traces) == 12
    decode = lessons.policy.tokenizer.decode
    for trace, example in zip(lessons.traces, divided(lessons.traces, 0.0, 0)[0], strict=True):
        said = decode(example.ids[example.mask == 1])
        assert said.count("<|im_end|>") == len(trace.turns) and "<tool_response>" not in said
        assert said == "".join(decode(trace.ids[t.start : t.end]) for t in trace.turns)
    assert len(load_lessons(on_traces(f"{traces},{traces}"), Quiet()).traces) == 24


def test_what_cannot_be_learned_from_is_refused(traces, tmp_path):
    with pytest.raises(InputError, match="no frozen traces"):
        load_lessons(on_traces(tmp_path), Quiet())
    with pytest.raises(InputError, match="has 1,[0-9]+ tokens, more than config.learn.row_length=500"):
        load_lessons(on_traces(traces, "--config.learn.row_length=500"), Quiet())
    with pytest.raises(InputError, match="12 traces to learn from are less than config.sft.batch=13"):
        finetune(on_traces(traces, "--config.sft.batch=13"), tmp_path / "run")


def test_a_run_does_not_go_on_with_other_traces(traces, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"traces_sha256": "0" * 64}))
    with pytest.raises(InputError, match="began with other traces"):
        finetune(on_traces(traces), tmp_path)


@pytest.mark.slow
def test_a_run_on_traces_that_is_stopped_in_its_evaluations_ends_the_same(traces, tmp_path, monkeypatch):
    """Two epochs, stopped while the held-out loss of each is measured: rows and weights are those of one go."""
    config = on_traces(traces, "--config.sft.held_out=0.3", "--config.sft.epochs=2", "--config.train.steps=0")
    finetune(config, tmp_path / "whole")
    measure = Learner.loss_of

    def stopped(*_):
        raise KeyboardInterrupt

    for step in (3, 5):
        monkeypatch.setattr(
            Learner,
            "loss_of",
            lambda self, *rest, at=step: (stopped if self.done == at else measure)(self, *rest),
        )
        with pytest.raises(KeyboardInterrupt):
            finetune(config, tmp_path / "parts")
    monkeypatch.setattr(Learner, "loss_of", measure)
    finetune(config, tmp_path / "parts")
    rows, again = (MetricsLog.read(tmp_path / run / "metrics.jsonl") for run in ("whole", "parts"))
    assert rows == again and len(rows) == 5
    measured = {row["step"]: row["learn/held_out_loss"] for row in rows if "learn/held_out_loss" in row}
    assert set(measured) == {3, 5} and measured[5] < measured[3] < 8
    files = [(tmp_path / run / "policy" / "model.safetensors").read_bytes() for run in ("whole", "parts")]
    assert files[0] == files[1]


@pytest.mark.slow
def test_the_held_out_loss_is_the_mean_over_tokens(traces, tmp_path):
    """Whatever the normaliser of the training, and however many go into a batch."""
    config = on_traces(traces, "--config.learn.normalizer=per_sequence")
    lessons = load_lessons(config, Quiet())
    learner = Learner(config, lessons.policy, "sft", 3, RunFolder(tmp_path))
    examples, _ = divided(lessons.traces, 0.0, 0)
    one_by_one = [learner.loss_of([e], 1, 4) * e.targets for e in examples[:4]]
    mean = sum(one_by_one) / sum(e.targets for e in examples[:4])
    assert learner.loss_of(examples[:4], 2, 4) == pytest.approx(mean, rel=1e-5)
    assert learner.loss_of(examples[:4], 4, 4) == pytest.approx(mean, rel=1e-5)


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
