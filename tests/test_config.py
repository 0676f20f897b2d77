"""Configuration: unknown keys, wrong values and missing files are one clear line; no field is dead."""

import dataclasses
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from carr_jax import config as configuration
from carr_jax import preflight
from carr_jax.command import main, parse
from carr_jax.records import InputError
from carr_jax.task import load_task

ROOT = Path(__file__).parents[1]
TINY = str(ROOT / "configs" / "c_grpo_tiny.py")


def run_main(*arguments, run=lambda config, workdir: None):
    return main(run, ["launch/train.py", *arguments])


def test_the_files_in_configs_are_valid(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    for path in sorted((ROOT / "configs").glob("*.py")):
        config, _ = parse(["train.py", f"--config={path}", "--config.data.path=somewhere"])
        if "rollout" in config and config.rollout.engine == "sglang":
            config.rollout.servers = ("http://somewhere:30000",)
        assert configuration.problems(config) == [], path.name
        assert "python launch/" in path.read_text().split('"""')[1], "its docstring has the command"


def test_overrides_and_default_workdir():
    config, workdir = parse(["train.py", f"--config={TINY}", "--config.learn.lr=1e-5"])
    assert config.learn.lr == 1e-5
    assert workdir == Path("runs/c_grpo_tiny")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no configuration was given"),
        (["--config=nowhere.py"], "nowhere.py: there is no such file"),
        ([f"--config={TINY}", "--config.learn.lrate=1"], "config.learn.lrate; did you mean config.learn.lr?"),
        ([f"--config={TINY}", "--config.lern.lr=1"], "did you mean config.learn.lr?"),
        ([f"--config={TINY}", "--config.model.lora_rank=8"], "LoRA is not part of this recipe"),
        ([f"--config={TINY}", "--config.learn.lr=fast"], "fast"),
        ([f"--config={TINY}", "--workdr=x"], "unknown option --workdr"),
        ([f"--config={TINY}", "extra"], "unexpected argument 'extra'"),
        ([f"--config={TINY}", "--config.reward.mix=carr_papr"], "did you mean carr_paper?"),
        (
            [f"--config={TINY}", "--config.rollout.temperature=0.0"],
            "config.rollout.temperature=0.0 must be positive",
        ),
        ([f"--config={TINY}", "--config.rollout.group_size=1"], "group_size must be at least 2"),
        ([f"--config={TINY}", "--config.learn.row_length=64"], "a trajectory is never cut"),
        ([f"--config={TINY}", "--config.world.hops=(2,9)"], "config.world.hops must be lengths from 1 to 4"),
        ([f"--config={TINY}", "--config.data.source=files"], "needs config.data.path"),
        ([f"--config={TINY}", "--config.data.source=tfds"], "needs config.data.path and config.data.name"),
        ([f"--config={TINY}", "--config.data.name=x"], "is used only with config.data.source=tfds"),
        ([f"--config={TINY}", "--config.data.skip_bad_rows"], "is used only with config.data.source=files"),
        ([f"--config={TINY}", "--config.search.source=server"], "server needs config.search.server.url"),
        ([f"--config={TINY}", "--config.search.source=corpse"], "did you mean corpus?"),
        ([f"--config={TINY}", "--config.search.index.dense_model=."], "needs config.search.index.path"),
        (
            [
                f"--config={TINY}",
                "--config.search.source=server",
                "--config.search.server.url=http://127.0.0.1:9/",
            ],
            "start one with launch/serve_tools.py",
        ),
    ],
)
def test_mistakes_are_one_line(arguments, says, capsys, tmp_path):
    status = run_main(*arguments, *([f"--workdir={tmp_path}"] if arguments else []))
    out = capsys.readouterr().out
    assert status == 2
    assert says in out
    assert out.count("\n") == 1


def test_preflight_reports_everything_at_once(capsys, tmp_path):
    status = run_main(
        f"--config={TINY}",
        f"--workdir={tmp_path}",
        "--config.model.policy=no/such/policy",
        "--config.data.path=no/such/data",
        "--config.learn.lr=-1.0",
    )
    out = capsys.readouterr().out
    assert status == 2
    for missing in ("no/such/policy", "no/such/data", "config.learn.lr=-1.0 must be positive"):
        assert missing in out


def test_preflight_names_every_file_that_a_policy_folder_lacks(capsys, tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    run_main(
        f"--config={TINY}", f"--workdir={tmp_path / 'run'}", f"--config.model.policy={tmp_path / 'policy'}"
    )
    out = capsys.readouterr().out
    assert "has no tokenizer.json;" in out and "has no model.safetensors or model.safetensors.index.json" in out
    assert "has no config.json" not in out


LLM = [f"--config={TINY}", "--config.judge.kind=llm"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "config.judge.kind=llm needs config.judge.endpoints"),
        (["--config.judge.votes=2"], "config.judge.votes must be odd"),
        (["--config.judge.budget_usd=5.0"], "config.judge.budget_usd needs config.judge.price_prompt"),
        (["--config.judge.page_bytes=10"], "config.judge.page_bytes must be at least 200"),
        (["--config.judge.kind=lm"], "did you mean llm?"),
        (["--config.judge.replay=True"], "judge/replies.sqlite; make one with config.judge.replay=False"),
    ],
)
def test_mistakes_about_the_judge_are_one_line(options, says, capsys, tmp_path):
    assert run_main(*LLM, *options, f"--workdir={tmp_path}") == 2
    out = capsys.readouterr().out
    assert says in out and out.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "config.search.web.search_keys: the environment variable SERPER_API_KEY is not set"),
        (
            ["--config.search.web.budget_usd=5.0"],
            "config.search.web.budget_usd needs config.search.web.search_usd",
        ),
        (["--config.search.web.ports=(0,)"], "config.search.web.ports must be ports"),
        (
            ["--config.search.web.retold_share=2.0"],
            "config.search.web.retold_share=2.0 must lie between 0 and 1",
        ),
        (
            ["--config.search.cache.mode=replay"],
            "tools/answers.sqlite; make one with config.search.cache.mode=record",
        ),
        (["--config.search.cache.mode=recrod"], "did you mean record?"),
    ],
)
def test_mistakes_about_the_web_are_one_line(options, says, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    monkeypatch.setenv("JINA_API_KEY", "not-to-be-shown")
    web = [f"--config={TINY}", "--config.search.source=web", "--config.data.source=world"]
    assert run_main(*web, *options, f"--workdir={tmp_path}") == 2
    out = capsys.readouterr().out
    assert says in out and out.count("\n") == 1 and "not-to-be-shown" not in out and "JINA_API_KEY" not in out


def test_everything_that_a_judge_lacks_is_said_at_once(capsys, tmp_path, monkeypatch):
    """Keys that are not set, addresses that are none, and addresses where nobody listens; never a key."""
    monkeypatch.delenv("JUDGE_KEY_A", raising=False)
    monkeypatch.setenv("JUDGE_KEY_B", "not-to-be-shown")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        alive = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        endpoints = (
            f"{alive} JUDGE_KEY_B,JUDGE_KEY_A",
            "http://127.0.0.1:9/v1 JUDGE_KEY_B",
            "nowhere",
            "ftp://x",
        )
        status = run_main(*LLM, f"--config.judge.endpoints={endpoints}", f"--workdir={tmp_path}")
        out = capsys.readouterr().out
        assert status == 2 and out.count("\n") == 1
        assert "the environment variable JUDGE_KEY_A is not set" in out and "JUDGE_KEY_B is not set" not in out
        assert "config.judge.endpoints: http://127.0.0.1:9/v1: " in out and alive not in out
        assert "'nowhere' is no address" in out and "'ftp://x' is no address" in out
        assert "not-to-be-shown" not in out
        good = f"--config.judge.endpoints=('{alive} JUDGE_KEY_B',)"
        assert run_main(*LLM, good, f"--workdir={tmp_path}") == 0


def test_a_run_goes_on_with_another_budget_but_not_with_another_judge(tmp_path):
    config = configuration.rl()
    (tmp_path / "config.json").write_text('{"config": ' + configuration.to_json(config) + "}")
    config.judge.budget_usd, config.judge.price_prompt, config.judge.concurrency = 7.0, 1.0, 3
    assert preflight.preflight(config, tmp_path) == []
    config.judge.model = "another"
    (problem,) = preflight.preflight(config, tmp_path)
    assert "judge.model" in problem


def test_a_folder_of_another_run_is_refused(tmp_path):
    config = configuration.rl()
    (tmp_path / "config.json").write_text('{"config": ' + configuration.to_json(config) + "}")
    assert preflight.preflight(config, tmp_path) == []
    with config.unlocked():
        config.learn.lr = 1.0
    (problem,) = preflight.preflight(config, tmp_path)
    assert "learn.lr" in problem
    config.learn.lr, config.train.steps = 2e-6, 7  # more steps of the same run are fine
    assert preflight.preflight(config, tmp_path) == []


def test_usage_errors_come_before_jax():
    """A typo must not cost an import of jax, and works without any installed accelerator."""
    code = (
        "import sys; sys.argv = ['train.py']; sys.path.insert(0, '.');"
        "from carr_jax.command import main;"
        "status = main(None, sys.argv); sys.exit(10 * ('jax' in sys.modules) + status)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 2


def test_every_field_is_read():
    """No dead knobs: each field of both defaults is used by the package by its own name.

    Sections that are passed on whole (`search`, `world`) must match what they are passed to, and the learner's
    fields are matched by name.
    """
    from carr_jax.learning.step import LearnConfig
    from carr_jax.search.browser import Limits
    from carr_jax.search.world import WorldConfig
    from carr_jax.sharding import MESH_AXES

    passed_on = {
        "search": {f.name for f in dataclasses.fields(Limits)},
        "world": {f.name for f in dataclasses.fields(WorldConfig)},
        "learn": {f.name for f in dataclasses.fields(LearnConfig)},
        "mesh": set(MESH_AXES),
    }
    aliases = ("agent", "search.web", "search.cache")
    here = ("config.py", "sections.py")
    sources = [p.read_text() for p in (ROOT / "carr_jax").rglob("*.py") if p.name not in here]
    for name in {**configuration.flatten(configuration.rl()), **configuration.flatten(configuration.sft())}:
        section, _, field = name.rpartition(".")
        if field in passed_on.get(section, ()):
            continue
        owner = section or "config"
        pattern = rf"\b{owner}\.{field}\b" if section else r"\bconfig\.seed\b"
        alias = section if section == "agent" else section.removeprefix("search.")
        aliased = rf"\b{alias}\.{field}\b"  # task.py names these sections before it reads them
        assert any(re.search(pattern, s) or (section in aliases and re.search(aliased, s)) for s in sources), (
            name
        )


def test_choices_and_rules_name_real_fields():
    known = {**configuration.flatten(configuration.rl()), **configuration.flatten(configuration.sft())}
    named = {
        *configuration._CHOICES,
        *configuration._POSITIVE,
        *configuration._SHARES,
        *configuration._NOT_NEGATIVE,
        *preflight._MAY_CHANGE,
    }
    assert named <= set(known)


def test_kernels_and_policies_are_those_of_the_model():
    from carr_jax.models.compute import ATTENTION, GROUPED_MATMUL, REMAT

    choices = configuration._CHOICES
    assert set(choices["model.remat"]) == set(REMAT)
    assert set(choices["model.attention"]) == {"auto", *ATTENTION}
    assert set(choices["model.experts"]) == {"auto", *GROUPED_MATMUL}


def test_unknown_field_in_a_config_file_is_an_error(tmp_path):
    bad = tmp_path / "bad.py"
    lines = ["from carr_jax import config", "def get_config():", "    c = config.rl()", "    c.learn.lrate = 1"]
    bad.write_text("\n".join([*lines, "    return c"]))
    with pytest.raises(InputError, match="lr"):
        parse(["train.py", f"--config={bad}"])


def test_a_bad_row_is_a_message_and_not_a_traceback(tmp_path, capsys):
    (tmp_path / "corpus.jsonl").write_text('{"url": "https://a.example", "title": "A", "text": "a"}\n')
    (tmp_path / "q.jsonl").write_text('{"id": "1", "question": "?"}\n')
    argv = ["train.py", "--config=configs/c_grpo_tiny_wiki.py", f"--config.data.path={tmp_path}"]
    status = main(lambda config, workdir: load_task(config, "train"), [*argv, f"--workdir={tmp_path / 'run'}"])
    said = capsys.readouterr().out
    assert status == 2 and said.startswith("train.py: 1 bad rows") and "q.jsonl:1: the key 'answer'" in said
