"""launch/plan.py from end to end: small plans on fake devices and for a TPU that is not there."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from carr_jax.command import parse as parse_config
from carr_jax.models.attention import context_order
from carr_jax.planning import command, table
from carr_jax.planning import plan as plans
from carr_jax.planning.knobs import knobs
from carr_jax.planning.memory import Memory
from carr_jax.planning.plan import to_json
from carr_jax.planning.step import model_shape, seen_blocks, trace
from carr_jax.planning.topology import parse
from carr_jax.records import InputError

ROOT = Path(__file__).parents[2]
TINY = f"--config={ROOT / 'configs' / 'c_grpo_tiny.py'}"
SMALL = (
    "--config.model.policy=",
    "--config.model.vocab_size=512",
    "--config.agent.context=512",
    "--config.learn.row_length=512",
    "--config.learn.rows=0",
    "--config.rollout.prompts=1",
    "--config.rollout.group_size=8",
)
ON_FOUR = ("--config.mesh.fsdp=2", "--config.mesh.context=2")
NUMBERS = {"peak_gib", "arguments_gib", "limit_gib", "flops_per_step"}


def run(*arguments):
    done = subprocess.run(
        [sys.executable, str(ROOT / "launch" / "plan.py"), *arguments],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout


def check_numbers(found):
    assert all(isinstance(found[key], int | float) and found[key] > 0 for key in NUMBERS), found
    times = found["seconds_at_mfu"]
    assert times["0.4"] > times["0.5"] > times["0.6"] > 0
    assert times["0.4"] / times["0.6"] == pytest.approx(1.5, rel=2e-3)
    parts = ("weights", "optimizer", "batch", "gradients", "activations", "temporaries")
    assert sum(found[f"{part}_gib"] for part in parts) == pytest.approx(found["peak_gib"], abs=4e-3)


def test_a_plan_on_four_fake_devices():
    status, out = run(TINY, *SMALL, *ON_FOUR, "--topology=cpu:4", "--json")
    found = json.loads(out.strip().split("\n")[-1])
    assert status == 0 and found["fits"] is True and found["peak_from"] == "compiler"
    check_numbers(found)
    assert found["chips"] == 4 and found["batch_shape"] == [4, 2, 512] and found["tokens_per_step"] == 8 * 512
    assert max(len(line) for line in out.split("\n")[:-2]) <= 100
    # No recomputation, but five products for four in the attention and the logits computed twice.
    assert 1 < found["program_flops_ratio"] < 1.35
    assert sum(found["traffic_gb_per_micro_step"].values()) > 0


def test_gpus_are_an_estimate_and_say_so():
    status, out = run(TINY, *SMALL, *ON_FOUR, "--topology=h200:4", "--json")
    found = json.loads(out.strip().split("\n")[-1])
    assert status == 0 and found["peak_from"] == "estimate" and found["limit_gib"] == pytest.approx(133.3)
    assert "no compiler without a GPU" in out
    check_numbers(found)


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (the extra `plan`)"
)
def test_a_plan_for_a_tpu():
    status, out = run(TINY, *SMALL, *ON_FOUR, "--topology=v6e:2x2", "--json", "--config.model.dtype=bfloat16")
    found = json.loads(out.strip().split("\n")[-1])
    assert status == 0 and found["fits"] and found["limit_gib"] == 31.25
    check_numbers(found)
    assert found["arguments_gib"] < found["peak_gib"] < 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([TINY], "no --topology was given"),
        ([TINY, "--topology=v9:2x2"], "--topology=v9:2x2 is not understood"),
        (["--topology=cpu"], "no configuration was given"),
        ([TINY, "--topology=cpu", "--config.learn.lr=-1.0"], "config.learn.lr=-1.0 must be positive"),
        ([TINY, "--topology=cpu:4", "--json=yes"], "argument --json"),
    ],
)
def test_mistakes_are_one_line(arguments, says, capsys):
    assert command.main(["launch/plan.py", *arguments]) == 2
    out = capsys.readouterr().out
    assert says in out and out.count("\n") == 1


def test_mistakes_are_json_too(capsys):
    assert command.main(["launch/plan.py", TINY, "--topology=v9", "--json"]) == 2
    found = json.loads(capsys.readouterr().out.split("\n")[-2])
    assert found["fits"] is False and "not understood" in found["error"]


def test_kernels_of_other_chips_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(command, "prepare", lambda topology: None)
    assert command.main(["launch/plan.py", TINY, "--topology=cpu", "--config.model.attention=splash"]) == 2
    assert "config.model.attention=splash does not run on cpu" in capsys.readouterr().out


def traced(*arguments):
    config, _ = parse_config(["plan.py", TINY, *SMALL, *ON_FOUR, *arguments])
    return config, trace(config, jax.devices()[:4], "cpu")


def test_the_policys_own_shape_comes_first(tmp_path):
    config, _ = parse_config(["plan.py", TINY])
    assert model_shape(config)[1] == "carr_jax/assets/sft_tiny"
    config.model.hf_config = str(ROOT / "configs" / "architectures" / "qwen3_4b.json")
    assert model_shape(config)[0].vocab_size != 151_936
    config.model.policy = str(tmp_path / "not_there_yet")
    assert model_shape(config)[0].vocab_size == 151_936
    config.model.hf_config = ""
    assert model_shape(config)[1] == "preset tiny"


@pytest.mark.parametrize(
    ("length", "parts", "queries", "keys"), [(64, 1, 8, 8), (96, 2, 16, 8), (64, 4, 8, 16)]
)
def test_seen_blocks(length, parts, queries, keys):
    """Against the mask: a block counts when one of its pairs is visible."""
    order = context_order(length, parts).reshape(parts, -1)
    mask = order[:, :, None] >= np.arange(length)
    blocks = mask.reshape(parts, -1, queries, length // keys, keys).any((2, 4))
    assert seen_blocks(length, parts, queries, keys) == blocks.sum() / parts


def test_what_to_turn_when_it_does_not_fit():
    config, step = traced()
    memory = Memory(
        weights=2, optimizer=8, batch=0, gradients=2, activations=20, temporaries=1, host=0, limit=16
    )  # fmt: skip
    (first, *others) = knobs(config, step, memory)
    assert first.startswith("config.model.remat=full") and first.endswith("about 20.0 GiB less")
    text = "\n".join(others)
    assert "config.learn.moments=host: about 8.0 GiB less" in text
    assert "config.learn.moments=bfloat16: about 4.0 GiB less" in text
    assert "twice as many chips: about 6.0 GiB less" in text
    assert "config.mesh.context=4 (each row on twice as many chips): about 10.5 GiB less" in text


def refused(monkeypatch, message):
    """A small plan for a TPU whose compiler answers with an error."""

    class Refused:
        def compile(self):
            raise jax.errors.JaxRuntimeError(message)

    config, step = traced()
    monkeypatch.setattr(plans, "devices", lambda topology: jax.devices()[:4])
    monkeypatch.setattr(plans, "trace", lambda *_: step)
    monkeypatch.setattr(type(step.traced), "lower", lambda *_, **__: Refused())
    return plans.make_plan(config, parse("v6e:2x2"))


def test_a_step_that_does_not_fit(monkeypatch):
    """The compiler's refusal becomes a plan: how much was needed, and what to do."""
    message = "RESOURCE_EXHAUSTED: HLO temporaries (75.57G) exceeds available HBM (31.25G)"
    found = to_json(refused(monkeypatch, message))
    assert (found["fits"], found["peak_gib"], found["limit_gib"]) == (False, 75.57, 31.25)
    assert found["peak_from"] == "compiler (refused)" and found["knobs"]
    json.dumps(found)


def test_a_compiler_that_fails_is_one_line(monkeypatch):
    with pytest.raises(InputError, match="the compiler for v6e:2x2 failed: INTERNAL: RET_CHECK failure"):
        refused(monkeypatch, "INTERNAL: RET_CHECK failure\n(somewhere)")


def test_the_table():
    entry = table.Entry("c_grpo_4b", "v6e:4x4", {"mesh.context": 4}, "small")
    assert entry.command() == ["--config=configs/c_grpo_4b.py", "--topology=v6e:4x4", "--config.mesh.context=4"]
    found = {
        "batch_shape": [32, 4, 65536], "mesh": {"data": 1, "fsdp": 4, "context": 4}, "arguments_gib": 2.81,
        "peak_gib": 13.94, "limit_gib": 31.25, "fits": True, "peak_from": "compiler", "knobs": [],
        "flops_per_step": 689e15, "program_flops_ratio": 1.214,
        "traffic_gb_per_micro_step": {"all-gather": 53.0},
        "ideal_traffic_gb_per_micro_step": 52.0, "seconds_at_mfu": {"0.4": 117.2, "0.5": 93.8, "0.6": 78.1},
    }  # fmt: skip
    text = table.markdown([(entry, found), (entry, table.last_json("a line\nno libtpu"))])
    good, bad = text.strip().split("\n")[-2:]
    assert good == (
        "| c_grpo_4b | v6e:4x4 | fsdp 4 x context 4 | 32 x 4 x 65,536 | 2.8 | 13.9 | 31.2 | yes | 689 | 1.21 "
        "| 117 / 94 / 78 | 53 / 52 | small; mesh.context=4 |"
    )
    assert bad.endswith("| error: no libtpu |")
    assert good.count("|") == bad.count("|") == text.split("\n| ---")[0].split("\n")[-1].count("|")
