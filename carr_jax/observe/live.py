"""What a person sees while a run trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

SUMMARY = (
    ("Mixed reward", "reward/mixed"),
    ("Outcome", "reward/outcome"),
    ("Rubrics connected", "carr/connected"),
    ("Citations", "carr/citations"),
    ("Tool calls", "agent/tool_calls"),
)


class LiveView:
    """Progress of a run: a live panel on a terminal, one plain line per step elsewhere (CI logs, files).

    Use as a context manager; call `phase` when a part of a step begins and `step` with each metrics row.
    `total` is the number of steps of the whole run, `done` how many a resumed run has behind it.
    """

    def __init__(self, total: int, done: int = 0, console: Console | None = None) -> None:
        self.console = console or Console()
        self.total, self.done = total, done
        self._first = done
        self._start = time.monotonic()
        self._numbers = Text("waiting for the first step")
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[left]} left"),
            TimeElapsedColumn(),
            TextColumn("[cyan]{task.fields[phase]}"),
            console=self.console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=total, completed=done, left="?", phase="starting")
        self._live = Live(Group(self._progress, self._numbers), console=self.console, refresh_per_second=4)

    def __enter__(self) -> LiveView:
        self._start = time.monotonic()
        if self.console.is_terminal and not self.console.quiet:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def phase(self, name: str) -> None:
        """Say what runs now: rollout, reward, train, save."""
        self._progress.update(self._task, phase=name)

    def step(self, row: Row) -> None:
        """Show a finished step; `row` is its line of metrics.jsonl, and its steps count from 1."""
        self.done = int(row["step"])
        left = clock(self.seconds_left())
        line = step_line(row)
        if not self.console.is_terminal:
            text = f"step {self.done}/{self.total}  {line}  {left} left"
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
            return
        self._numbers.plain = line
        self._progress.update(self._task, completed=self.done, left=left)

    def seconds_left(self) -> float | None:
        """From the mean duration of the steps this process made; None before the first."""
        steps = self.done - self._first
        if steps < 1:
            return None
        return (time.monotonic() - self._start) / steps * (self.total - self.done)


def step_line(row: Row) -> str:
    """The latest numbers in one line; what the row does not hold is left out."""
    supervised = "reward/mixed" not in row  # the loss of reinforcement learning tells nothing
    parts = [
        _labelled("loss", row.get("learn/loss") if supervised else None, "{:.4f}"),
        _labelled("held-out loss", row.get("learn/held_out_loss"), "{:.4f}"),
        _labelled("mixed", row.get("reward/mixed"), "{:.3f}"),
        _labelled("outcome", row.get("reward/outcome"), "{:.3f}"),
        _labelled("rubric", row.get("reward/rubric"), "{:.3f}"),
        _labelled("tool calls", row.get("agent/tool_calls"), "{:.1f}"),
        _labelled("tokens/s", tokens_per_second(row), "{:,.0f}"),
    ]
    return "  ".join(part for part in parts if part)


def tokens_per_second(row: Row) -> float | None:
    """Trained tokens over the wall time of the whole step (all `time/*_s`)."""
    seconds = sum(value for key, value in row.items() if key.startswith("time/") and value)
    tokens = row.get("learn/tokens")
    return tokens / seconds if tokens is not None and seconds > 0 else None


def _labelled(label: str, value: float | None, form: str) -> str:
    return "" if value is None else f"{label} {form.format(value)}"


def clock(seconds: float | None) -> str:
    """ "1:02:05", or "?" when unknown."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


# -------------------------------------------------------------------------------------------- the summary


def first_and_last(rows: Sequence[Row]) -> list[tuple[str, float | None, float | None]]:
    """For each summary line its mean over the first and over the last steps, None where nothing was measured.

    The two windows have the size of `window(len(rows))`.
    """
    size = window(len(rows))
    first, last = rows[:size], rows[len(rows) - size :]
    return [(label, mean_of(first, key), mean_of(last, key)) for label, key in SUMMARY]


def window(steps: int) -> int:
    """Ten steps, or half of a shorter run so that the windows do not overlap (a single step is both)."""
    return min(10, max(1, steps // 2)) if steps else 0


def mean_of(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None


def summary_table(rows: Sequence[Row]) -> Table:
    """First against last steps, with the difference."""
    size = window(len(rows))
    table = Table(title=f"Means over the first and the last {size} of {len(rows)} steps")
    table.add_column("")
    for name in ("First", "Last", "Difference"):
        table.add_column(name, justify="right")
    for label, first, last in first_and_last(rows):
        table.add_row(label, *summary_cells(first, last))
    return table


def summary_cells(first: float | None, last: float | None) -> tuple[str, str, str]:
    """The three numbers of a summary line as text; a dash where nothing was measured."""
    dash = "\N{EN DASH}"
    difference = dash if first is None or last is None else f"{last - first:+.3f}"
    return (
        dash if first is None else f"{first:.3f}",
        dash if last is None else f"{last:.3f}",
        difference,
    )
