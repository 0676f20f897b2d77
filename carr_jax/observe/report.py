"""`report.html`: a run on one page, in one file that needs nothing else.

Made from whatever the run folder holds: `config.json`, `metrics.jsonl`, `evaluations.jsonl` and
`trajectories/`; each may be missing.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from carr_jax.observe.files import atomic_file
from carr_jax.observe.live import SUMMARY, clock, first_and_last, mean_of, summary_cells, window
from carr_jax.observe.metrics import MetricsLog
from carr_jax.observe.style import CSS
from carr_jax.observe.svg import Series, line_chart
from carr_jax.observe.transcript import escape, group_card
from carr_jax.observe.viewer import read_trajectories
from carr_jax.records import Group

Row = Mapping[str, Any]

NO_STEP = '<p class="note">No step has been logged yet.</p>'

# title, then (label, metrics key, style class) for each line
CHARTS = (
    ("Outcome", (("", "reward/outcome", "s3"),)),
    ("Mixed reward", (("", "reward/mixed", "s3"),)),
    (
        "Rubrics per answer",
        (
            ("identified", "carr/identified", "s1"),
            ("supported", "carr/supported", "s2"),
            ("connected", "carr/connected", "s3"),
        ),
    ),
    ("Citations per answer", (("", "carr/citations", "s3"),)),
    ("Tool calls", (("", "agent/tool_calls", "s3"),)),
    ("Generated tokens", (("", "agent/generated_tokens", "s3"),)),
    (
        "Unfinished episodes",
        (("over length", "agent/over_length", "sg"), ("format error", "agent/format_error", "sb")),
    ),
    ("Entropy", (("", "learn/entropy", "s3"),)),
    ("Gradient norm", (("", "learn/grad_norm", "s3"),)),
    ("Trainer / engine ratio", (("", "learn/ratio_mean", "s3"),)),
    (
        "Trainer / engine mismatch",
        (
            ("tokens off by 10 %", "learn/ratio_outside_10", "s1"),
            ("tokens off by 2 x", "learn/ratio_outside_half", "sb"),
            ("whole sequences", "learn/sequence_outliers", "s3"),
        ),
    ),
    (
        "Share of tokens held back",
        (("IcePop", "learn/icepop_masked", "sb"), ("clipped", "learn/clipped", "sg")),
    ),
    (
        "Seconds per step",
        (
            ("rollout", "time/rollout_s", "s3"),
            ("reward", "time/reward_s", "sb"),
            ("train", "time/train_s", "sg"),
        ),
    ),
)


def write_report(run_dir: str | os.PathLike[str]) -> pathlib.Path:
    """Write `report.html` into `run_dir` and return its path.

    Raises FileNotFoundError when there is no such folder, ValueError for a file in it that cannot be read.
    """
    run = pathlib.Path(run_dir)
    if not run.is_dir():
        raise FileNotFoundError(f"{run} is not a folder; give the folder of a run")
    logs = (run / "metrics.jsonl", run / "evaluations.jsonl")
    rows, evaluations = (MetricsLog.read(log) if log.exists() else [] for log in logs)
    config_path = run / "config.json"
    config = json.loads(config_path.read_text("utf-8")) if config_path.exists() else {}
    page = render(run.resolve().name, config, rows, evaluations, list(chosen_groups(run / "trajectories")))
    path = run / "report.html"
    with atomic_file(path) as file:
        file.write(page.encode())
    return path


def render(
    name: str,
    config: Mapping[str, Any],
    rows: Sequence[Row],
    evaluations: Sequence[Row],
    groups: Sequence[tuple[str, Group]],
) -> str:
    """The page as text; `groups` are (title, group)."""
    body = "".join(
        [
            f'<header><p class="eyebrow">Training run</p><h1>{escape(name)}</h1>',
            _facts(rows),
            _settings(config),
            "</header>",
            _section("Course of the run", _charts(rows)),
            _section("First against last", _summary(rows)),
            _section("Held-out questions", _held_out(evaluations)),
            _section("Trajectories", _trajectories(groups)),
            "<footer>Made by carr_jax from the files of this run.</footer>",
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Belt and braces under the escaping: even markup that slipped through could neither run nor load.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(name)}: run report</title><style>{CSS}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


# ------------------------------------------------------------------------------------------------ the header


def _facts(rows: Sequence[Row]) -> str:
    """Where the run stands: the last steps' means, and what it took."""
    last = rows[len(rows) - window(len(rows)) :]
    connected, rubrics = mean_of(last, "carr/connected"), mean_of(last, "carr/rubrics")
    of_rubrics = f" <small>of {_value(rubrics)}</small>" if rubrics is not None else ""
    facts = [
        ("Steps", str(len(rows))),
        ("Outcome", _share(mean_of(last, "reward/outcome"))),
        ("Rubrics connected", f"{_value(connected)}{of_rubrics}"),
        ("Tool calls", _value(mean_of(last, "agent/tool_calls"))),
        ("Citations", _value(mean_of(last, "carr/citations"))),
        ("Unknown scores", _share(mean_of(rows, "reward/unknown_rate"))),
        ("Judge cost", f"${sum(row.get('judge/cost_usd') or 0 for row in rows):,.2f}"),
        ("Time in steps", f"{clock(_seconds(rows))} <small>h:m:s</small>"),
    ]
    cells = "".join(f"<div><dt>{title}</dt><dd>{value}</dd></div>" for title, value in facts)
    steps = "step" if len(last) == 1 else f"{len(last)} steps"
    note = (
        f'<p class="note">Outcome, rubrics, tool calls and citations: means over the last {steps}.</p>'
        if rows
        else ""
    )
    return f'<dl class="facts card">{cells}</dl>{note}'


def _seconds(rows: Sequence[Row]) -> float:
    return sum(value or 0 for row in rows for key, value in row.items() if key.startswith("time/"))


def _value(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{100 * value:.3g}%"


def _settings(config: Mapping[str, Any]) -> str:
    if not config:
        return '<p class="note">This run folder holds no config.json.</p>'
    rows = "".join(
        f'<tr><th class="mono" scope="row">{escape(key)}</th><td class="mono">{escape(value)}</td></tr>'
        for key, value in flatten(config)
    )
    return (
        '<details class="plain settings card"><summary>All settings and versions</summary>'
        f'<div class="scroll"><table>{rows}</table></div></details>'
    )


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as ("group.name", text) pairs."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------ the charts


def _charts(rows: Sequence[Row]) -> str:
    charts = "".join(
        line_chart(title, [Series(label, style, _points(rows, key)) for label, key, style in lines])
        for title, lines in CHARTS
    )
    return f'<div class="charts">{charts}</div>' if charts else NO_STEP


def _points(rows: Sequence[Row], key: str) -> list[tuple[float, float]]:
    return [(row["step"], row[key]) for row in rows if row.get(key) is not None]


def _summary(rows: Sequence[Row]) -> str:
    if not rows:
        return NO_STEP
    size = window(len(rows))
    steps = "step" if size == 1 else f"{size} steps"
    body = [(label, *summary_cells(first, last)) for label, first, last in first_and_last(rows)]
    return _table(("", f"First {steps}", f"Last {steps}", "Difference"), body)


def _held_out(evaluations: Sequence[Row]) -> str:
    if not evaluations:
        return '<p class="note">No held-out question was asked.</p>'
    body = [
        (f"After step {row['step']}", str(row["questions"]), *(_value(row.get(key)) for _, key in SUMMARY[1:]))
        for row in evaluations
    ]
    return _table(("", "Questions", *(label for label, _ in SUMMARY[1:])), body)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of plain cells; the first of each row is its heading."""
    top = "".join(f'<th scope="col">{cell}</th>' if cell else "<th></th>" for cell in head)
    rows = "".join(
        f'<tr><th scope="row">{label}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        for label, *cells in body
    )
    return f'<div class="card scroll"><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>'


# ------------------------------------------------------------------------------------------ the trajectories


def _trajectories(groups: Sequence[tuple[str, Group]]) -> str:
    if not groups:
        return '<p class="note">This run folder holds no trajectories.</p>'
    note = (
        "One whole group of the first, the middle and the last stored step: the one whose rewards differ most. "
        "Open a sample to read what the policy thought, called, saw and answered."
    )
    return f'<p class="note">{note}</p>' + "".join(group_card(title, group) for title, group in groups)


def chosen_groups(folder: pathlib.Path) -> Iterator[tuple[str, Group]]:
    """For the first, middle and last stored step (title, its group with the widest spread of rewards)."""
    paths = sorted(folder.glob("step_*.jsonl.gz"))
    picks = sorted({0, len(paths) // 2, len(paths) - 1}) if paths else []
    for pick in picks:
        step = int(paths[pick].name.removeprefix("step_").split(".")[0])
        group = max(read_trajectories(paths[pick]), key=spread, default=None)
        if group is not None:
            yield f"Step {step}", group


def spread(group: Group) -> float:
    """Highest minus lowest known reward; -1 when none is known, so that such a group is chosen last."""
    known = group.rewards[np.isfinite(group.rewards)]
    return float(known.max() - known.min()) if len(known) else -1.0
