"""launch/convert.py as a person runs it: both directions, byte for byte, and what it refuses."""

import dataclasses
import importlib.util
import json
import sys
import tracemalloc
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from carr_jax.agent.tokenizer import train_bpe
from carr_jax.convert import differences
from carr_jax.learning.checkpoint import Checkpoints
from carr_jax.learning.step import LearnConfig, init_state
from carr_jax.models.config import from_hf_config, to_hf_config
from carr_jax.models.qwen3 import head_matrix, hidden_states
from carr_jax.policy import BESIDE, read_policy, write_policy
from carr_jax.weights import load_params, stored_shape, table, verify

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "models"))
from tiny_models import DENSE, MOE, params_of, shapes_of

TOKENIZER = train_bpe(["a page about nothing"], 300)
DENSE, MOE = (dataclasses.replace(m, vocab_size=TOKENIZER.vocab_size + 4) for m in (DENSE, MOE))
CONFIGS = pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
SHIPPED = ROOT / "carr_jax" / "assets" / "sft_tiny"


def command(*options):
    """(exit status); the script is loaded as a module so that jax is not imported again and again."""
    spec = importlib.util.spec_from_file_location("convert_script", ROOT / "launch" / "convert.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.main(["launch/convert.py", *options])


def published(folder, config, shards=1):
    """A model folder as another program writes it: bf16, in shards, tokenizer files, and things not ours."""
    folder.mkdir()
    shapes, rng, tensors = shapes_of(config), np.random.default_rng(1), {}
    for entry in table(config):
        shape = shapes
        for key in entry.path:
            shape = shape[key]
        tensors[entry.name] = rng.standard_normal(stored_shape(entry, shape.shape)).astype(ml_dtypes.bfloat16)
    names, where = sorted(tensors), {}
    for i in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{i + 1}.safetensors"
        save_file({n: tensors[n] for n in names[i::shards]}, folder / file, {"format": "pt"})
        where |= dict.fromkeys(names[i::shards], file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "config.json").write_text(json.dumps(to_hf_config(config) | {"torch_dtype": "bfloat16"}))
    TOKENIZER.save(folder)
    for name in ("tokenizer_config.json", "chat_template.jinja", "generation_config.json", "merges.txt"):
        (folder / name).write_text(f"{name} — as it is\n")
    (folder / "README.md").write_text("not ours")
    return tensors


def made_run(folder, config, steps=(2, 5)):
    """A run folder with checkpoints whose parameters are multiples of their step."""
    folder.mkdir()
    checkpoints = Checkpoints(folder / "checkpoints", 9)
    for step in steps:
        params = jax.tree.map(lambda x, step=step: jax.numpy.asarray(x * step), params_of(config))
        checkpoints.save(step, init_state(params, LearnConfig()), {})
    checkpoints.close()
    (folder / "config.json").write_text(json.dumps({"config": {}, "architecture": to_hf_config(config)}))
    TOKENIZER.save(folder / "tokenizer")
    (folder / "tokenizer" / "tokenizer_config.json").write_text("{}")
    return folder


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# ------------------------------------------------------------------------------------------ both directions


@CONFIGS
@pytest.mark.parametrize("shards", [1, 3])
def test_there_and_back_is_byte_identical(config, shards, tmp_path, capsys):
    tensors = published(tmp_path / "hf", config, shards)
    steps = [("hf", "ours", "float32"), ("ours", "half", "bfloat16"), ("half", "wide", "float32")]
    for source, target, dtype in [*steps, ("wide", "again", "bfloat16")]:
        options = (f"--from={tmp_path / source}", f"--to={tmp_path / target}", f"--dtype={dtype}", "--no-check")
        assert command(*options) == 0, capsys.readouterr().out
        assert "all checksums are right" in capsys.readouterr().out
    assert files(tmp_path / "again") == files(tmp_path / "half")
    assert files(tmp_path / "wide") == files(tmp_path / "ours")
    back = load_file(tmp_path / "again" / "model.safetensors")
    assert {k: v.tobytes() for k, v in back.items()} == {k: v.tobytes() for k, v in tensors.items()}
    assert all(v.dtype == ml_dtypes.bfloat16 for v in back.values())
    assert verify(tmp_path / "again") == []
    assert from_hf_config(tmp_path / "again") == config


def test_one_bit_of_difference_is_found(tmp_path):
    published(tmp_path / "hf", DENSE)
    for name in ("same", "other"):
        command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / name}", "--no-check")
    weights = tmp_path / "other" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    assert differences(tmp_path / "hf", tmp_path / "same") == []
    assert differences(tmp_path / "hf", tmp_path / "other") == ["1 tensors differ, model.norm.weight first"]


def test_the_tokenizers_files_come_along_and_nothing_else(tmp_path):
    published(tmp_path / "hf", DENSE)
    assert command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'a' / 'b'}", "--no-check") == 0
    before, after = files(tmp_path / "hf"), files(tmp_path / "a" / "b")
    same = {name for name in before if before[name] == after.get(name)}
    assert same >= {"tokenizer.json", "merges.txt", "chat_template.jinja", "generation_config.json"}
    assert set(after) == set(before) - {"README.md"} | {"manifest.json"}
    assert set(BESIDE) >= set(before) - {"README.md", "model.safetensors", "config.json", "tokenizer.json"}
    again = read_policy(tmp_path / "a" / "b")  # and a policy written by a training run keeps them
    write_policy(tmp_path / "c", again)
    assert files(tmp_path / "c")["chat_template.jinja"] == before["chat_template.jinja"]


@CONFIGS
def test_a_run_gives_its_newest_checkpoint_or_the_named_one(config, tmp_path, capsys):
    run = made_run(tmp_path / "run", config)
    before = sorted(p for p in run.rglob("*"))
    for step, option in ((5, ()), (2, ("--step=2",))):
        target = tmp_path / str(step)
        assert command(f"--from={run}", f"--to={target}", "--dtype=float32", *option) == 0
        assert f"checkpoint {step} of" in capsys.readouterr().out
        policy = read_policy(target)
        assert policy.model == config and policy.tokenizer.content_hash() == TOKENIZER.content_hash()
        assert (target / "tokenizer_config.json").read_text() == "{}"
        wanted = jax.tree.map(lambda x, step=step: x * step, params_of(config))
        jax.tree.map(np.testing.assert_array_equal, policy.params, wanted)
    assert sorted(p for p in run.rglob("*")) == before, "a run may be going on: its folder is only read"


def test_a_model_folder_is_never_held_in_memory(tmp_path):
    config = dataclasses.replace(DENSE, d_model=64, d_ff=512, num_layers=24)
    tensors = published(tmp_path / "hf", config)
    command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'first'}", "--no-check")  # imports and compiles
    tracemalloc.start()
    command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'second'}", "--dtype=float32", "--no-check")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    whole = 4 * sum(x.size for x in tensors.values())
    assert peak < whole / 3, f"{peak:,} bytes of {whole:,}"


@CONFIGS
def test_transformers_gives_the_same_logits(config, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, which this project does not install")
    from transformers import AutoModelForCausalLM

    published(tmp_path / "hf", config)
    assert command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'out'}", "--no-check") == 0
    ids = np.random.default_rng(0).integers(0, 300, (1, 9))
    logits = []
    for folder in ("hf", "out"):
        model, info = AutoModelForCausalLM.from_pretrained(
            tmp_path / folder, dtype=torch.float32, output_loading_info=True
        )
        assert not {k: v for k, v in info.items() if v}
        with torch.no_grad():
            logits.append(model(torch.tensor(ids)).logits[0].numpy())
    np.testing.assert_array_equal(logits[0], logits[1])
    params = load_params(tmp_path / "out", config)
    hidden = hidden_states(params, config, ids.astype(np.int32), np.arange(9)[None], np.ones_like(ids))
    ours = np.asarray(hidden[0] @ head_matrix(params, config))
    np.testing.assert_allclose(ours, logits[0], atol=1e-4 * logits[0].std(), rtol=1e-3)


# ------------------------------------------------------------------------------------------ what is checked


def test_a_trained_policy_passes_and_a_scrambled_one_is_not_written(tmp_path, capsys):
    assert command(f"--from={SHIPPED}", f"--to={tmp_path / 'good'}") == 0
    assert "perplexity 1.0 on sample.txt" in capsys.readouterr().out
    policy = read_policy(SHIPPED)
    scrambled = policy.params | {"layers": jax.tree.map(lambda x: x[::-1], policy.params["layers"])}
    write_policy(tmp_path / "bad", dataclasses.replace(policy, params=scrambled))
    assert command(f"--from={tmp_path / 'bad'}", f"--to={tmp_path / 'out'}") == 2
    said = capsys.readouterr().out
    assert "was not converted: its perplexity is" in said and "--no-check" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad", "good"]
    assert command(f"--from={tmp_path / 'bad'}", f"--to={tmp_path / 'out'}", "--no-check") == 0


def test_a_random_model_does_not_pass_and_a_text_can_be_given(tmp_path, capsys):
    published(tmp_path / "hf", MOE)
    text = tmp_path / "mine.txt"
    text.write_text("a page about nothing")
    assert command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'out'}", f"--text={text}") == 2
    assert f"on {text} (" in capsys.readouterr().out


def test_a_run_is_checked_when_it_is_asked_for(tmp_path, capsys):
    run = made_run(tmp_path / "run", DENSE, steps=(1,))
    assert command(f"--from={run}", f"--to={tmp_path / 'out'}", "--check") == 2
    assert "on plain English (" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------ what is refused


def test_all_mistakes_are_named_at_once(tmp_path, capsys):
    (tmp_path / "there").mkdir()
    options = (f"--to={tmp_path / 'there'}", "--dtype=fp8", "--step=x", "--text=no", "--chek", "stray")
    assert command(f"--from={tmp_path / 'none'}", *options) == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and said.startswith("convert.py: cannot start: ")
    for part in (
        "none: there is no such folder",
        "there exists already",
        "--dtype=fp8 is not one of bfloat16, float32",
        "--step=x is not a number",
        "--text=no: there is no such file",
        "unknown option --chek; did you mean --check?",
        "unknown option stray",
    ):
        assert part in said
    assert command() == 2
    said = capsys.readouterr().out
    assert "--from is missing" in said and "--to is missing" in said


def test_what_a_folder_lacks_and_what_does_not_fit_is_named_together(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    out, options = f"--to={tmp_path / 'out'}", ("--step=1", "--no-check", "--text=setup.py")
    command(f"--from={tmp_path / 'empty'}", out, *options)
    said = capsys.readouterr().out
    for part in ("no config.json, no tokenizer.json, no model.safe", "--step is for", "--text is read by"):
        assert part in said
    published(tmp_path / "hf", dataclasses.replace(DENSE, vocab_size=40))
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    assert command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'out'}") == 2
    said = capsys.readouterr().out
    assert "missing: model.layers.2" in said and f"has {TOKENIZER.vocab_size} tokens, the model 40" in said
    (tmp_path / "hf" / "config.json").write_text("{")
    (tmp_path / "hf" / "tokenizer.json").write_text("{")
    assert command(f"--from={tmp_path / 'hf'}", f"--to={tmp_path / 'out'}") == 2
    said = capsys.readouterr().out
    assert "config.json: " in said and "tokenizer.json: " in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_that_cannot_be_exported_says_why(tmp_path, capsys):
    run = made_run(tmp_path / "run", DENSE)
    out = f"--to={tmp_path / 'out'}"
    assert command(f"--from={run}", out, "--step=3") == 2
    assert "there is no checkpoint 3, only 2, 5" in capsys.readouterr().out
    wider = to_hf_config(dataclasses.replace(DENSE, d_ff=25))
    (run / "config.json").write_text(json.dumps({"architecture": wider}))
    assert command(f"--from={run}", out) == 2
    assert "mlp/down is float32[2,24,16] there and float32[2,25,16] here" in capsys.readouterr().out
    (run / "config.json").write_text(json.dumps({"config": {}}))
    assert command(f"--from={run}", out) == 2
    assert "does not say which architecture" in capsys.readouterr().out
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    assert command(f"--from={tmp_path / 'new'}", out) == 2
    assert "is a run without config.json" in capsys.readouterr().out


def test_help_is_for_people_and_costs_no_jax(capsys):
    with pytest.raises(SystemExit) as end:
        command("--help")
    assert end.value.code == 0
    said = capsys.readouterr().out
    for option in ("--from", "--to", "--dtype", "--step", "--no-check", "--text", "runs/c_grpo"):
        assert option in said
    source = (ROOT / "launch" / "convert.py").read_text()
    assert "\nimport jax" not in source and "\nfrom carr_jax.convert" not in source
