"""The report of whole, tiny and broken run folders; what the web wrote must stay text."""

import html.parser
import json
import random

import fake_run
import pytest
from fake_run import HOSTILE

from carr_jax.observe.report import flatten, spread, write_report
from carr_jax.observe.transcript import group_card

VOID = {"meta"}


class Page(html.parser.HTMLParser):
    """Collects tags and text, and fails on elements that are closed in the wrong order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words, self.stack = [], [], [], []
        self.feed(text)
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def report(run) -> Page:
    return Page(write_report(run).read_text("utf-8"))


def test_all_sections_of_a_whole_run(tmp_path):
    page = report(fake_run.write_run(tmp_path, 12))
    for part in ("Course of the run", "First against last", "Trajectories", "Step 1", "Step 6", "Step 12"):
        assert part in page.words
    assert page.tags.count("svg") == 13
    assert page.attributes.count(("class", "sample")) == 3 * 8
    assert "reward.mix" in page.words and "carr_paper" in page.words
    for style in ("st0", "st1", "st2", "st3"):
        assert ("class", f"chip {style}") in page.attributes
    assert "Ilsa Tørnqvist was born in Port Mavra." in page.words and "Brânduşa 山田" in page.text


def test_held_out_questions_before_and_after(tmp_path):
    run = fake_run.write_run(tmp_path, 2)
    assert "No held-out question was asked." in report(run).words
    rows = [
        {"step": step, "questions": 64, "reward/outcome": step / 8, "agent/tool_calls": 4} for step in (0, 2)
    ]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = report(run).words
    start = words.index("After step 2")
    assert words[start : start + 6] == ["After step 2", "64", "0.25", "\N{EN DASH}", "\N{EN DASH}", "4"]


def test_nothing_hostile_becomes_markup(tmp_path):
    run = tmp_path / "run <i>&"
    run.mkdir()
    fake_run.write_run(run, 2, HOSTILE + '"><img src=x onerror="1"></details></style>\ud800')
    page = report(run)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert('owned')</script>" in page.text  # shown, not run
    assert page.tags.count("style") == 1 and "\x1b" not in page.text
    assert "run <i>&" in page.words


def test_the_page_loads_nothing_from_outside(tmp_path):
    page = report(fake_run.write_run(tmp_path, 1))
    assert not {"script", "link", "img", "object"} & set(page.tags)
    assert not {"src", "href", "srcset", "action"} & {name for name, _ in page.attributes}
    assert "url(" not in page.text and "@import" not in page.text


def test_a_run_of_one_step(tmp_path):
    page = report(fake_run.write_run(tmp_path, 1))
    assert "First step" in page.words and "circle" in page.tags
    assert page.words.count("Step 1") == 1  # first, middle and last are the same


@pytest.mark.parametrize("missing", ["config.json", "metrics.jsonl", "trajectories", "all"])
def test_missing_files_are_said(tmp_path, missing):
    fake_run.write_run(tmp_path, 2)
    names = ["config.json", "metrics.jsonl"] if missing == "all" else [missing]
    for name in names:
        if name != "trajectories":
            (tmp_path / name).unlink()
    if missing in ("trajectories", "all"):
        for file in (tmp_path / "trajectories").iterdir():
            file.unlink()
    page = report(tmp_path)
    said = {
        "config.json": "no config.json",
        "metrics.jsonl": "No step has been logged",
        "trajectories": "holds no trajectories",
    }
    for name, words in said.items():
        assert (words in page.text) == (missing in (name, "all"))


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the folder of a run"):
        write_report(tmp_path / "nowhere")


def test_null_metrics_are_gaps_not_zeros(tmp_path):
    lines = [{"step": 1, "learn/grad_norm": None}, {"step": 2, "learn/grad_norm": 3.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(tmp_path)
    assert "step 2: 3" in page.words and not any(w.startswith("step 1:") for w in page.words)


def test_siblings_show_reward_and_advantage():
    group = fake_run.random_group(random.Random(5), 0.6)
    page = Page(group_card("Step 9", group))
    for reward, advantage in zip(group.rewards, group.advantages, strict=True):
        shown = "unknown" if reward != reward else f"{reward:.3f}".rstrip("0").rstrip(".")
        assert f"reward {shown}" in page.text
        assert advantage == 0 or f"advantage {advantage:+.3f}".rstrip("0") in page.text
    assert page.text.count("not trained on") == (~group.trained).sum()


def test_spread_ignores_unknown():
    group = fake_run.group((), (), [0.2, float("nan"), 0.9])
    assert spread(group) == pytest.approx(0.7)
    assert spread(fake_run.group((), (), [float("nan")])) == -1


def test_flatten():
    config = {"a": {"b": 1, "c": {"d": "x"}}, "e": [1, 2], "f": {}}
    assert list(flatten(config)) == [("a.b", "1"), ("a.c.d", "x"), ("e", "[1, 2]"), ("f", "{}")]
