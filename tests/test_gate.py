"""The gate before training: a run starts only with a judge that was measured, and was right often enough."""

import dataclasses
import json

import pytest

from carr_jax.config import rl
from carr_jax.gate import gate_problems, judge_facts, write_report
from carr_jax.preflight import preflight
from carr_jax.rewards import prompts
from carr_jax.rewards.calibration import Measure

MEASURE = Measure(
    labels=9, decisions=10, accuracy=0.95, agreement=1.0, unknown=0.0, invalid=0.0, calls=9, cost_usd=0.0
)


@pytest.fixture
def config(tmp_path):
    config = rl()
    config.judge.kind, config.judge.endpoints = "llm", ("http://127.0.0.1:9/v1",)
    config.judge.at_least, config.judge.calibration = 0.9, str(tmp_path / "report.json")
    write_report(tmp_path / "report.json", config, {"outcome": MEASURE, "support": MEASURE}, 3)
    return config


def test_a_judge_that_was_measured_and_is_good_enough_may_judge(config):
    assert gate_problems(config) == []
    config.judge.endpoints, config.judge.concurrency = ("http://elsewhere/v1",), 3  # no part of what it says
    assert gate_problems(config) == []


def test_one_that_is_right_too_seldom_in_one_step_may_not(config, tmp_path):
    low = dataclasses.replace(MEASURE, accuracy=0.8999)
    write_report(tmp_path / "report.json", config, {"outcome": MEASURE, "support": low}, 3)
    (problem,) = gate_problems(config)
    assert "right too seldom (support 90.0%)" in problem and "\n" not in problem
    config.judge.at_least = 0.89
    assert gate_problems(config) == []


def test_nothing_measured_is_not_good_enough(config, tmp_path):
    write_report(tmp_path / "report.json", config, {}, 3)
    assert "no step was measured" in gate_problems(config)[0]
    nan = dataclasses.replace(MEASURE, accuracy=float("nan"))
    write_report(tmp_path / "report.json", config, {"outcome": nan}, 3)
    assert gate_problems(config)


@pytest.mark.parametrize(
    ("name", "value"), [("model", "x"), ("votes", 3), ("temperature", 0.5), ("kind", "exact")]
)
def test_the_report_of_another_judge_opens_no_gate(config, name, value):
    config.judge[name] = value
    assert f"about another judge (other {name}" in gate_problems(config)[0].replace("max_tokens", "kind")


def test_a_judge_that_is_asked_in_other_words_is_another(config, monkeypatch):
    monkeypatch.setattr(prompts, "_DATA", prompts._DATA + " Please.")
    assert "about another judge (other words)" in gate_problems(config)[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"judge": {}, "steps": {"outcome": {}}}', '{"judge": 1}'])
def test_what_is_no_report_is_said_to_be_none(config, tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    assert "is no report of a calibration" in gate_problems(config)[0]


def test_a_run_says_it_with_all_else_that_is_missing(config, tmp_path):
    config.judge.calibration, config.learn.lr = str(tmp_path / "none.json"), -1.0
    found = "\n".join(preflight(config, tmp_path / "run"))
    assert f"this judge was not measured: there is no {tmp_path / 'none.json'}" in found
    assert "config.learn.lr" in found and "127.0.0.1:9" in found
    config.judge.at_least = 0.0
    assert "measured" not in "\n".join(preflight(config, tmp_path / "run"))


def test_the_report_holds_the_measures(config, tmp_path):
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"]["outcome"] == dataclasses.asdict(MEASURE) and report["times"] == 3
    assert report["judge"] == judge_facts(config)
