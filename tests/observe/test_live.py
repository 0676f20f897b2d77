"""The live view on a terminal and in a log file, and the summary."""

import io

import pytest
from rich.console import Console

from carr_jax.observe.live import (
    LiveView,
    clock,
    first_and_last,
    step_line,
    summary_table,
    tokens_per_second,
    window,
)

ROW = {
    "step": 3,
    "reward/mixed": 0.25,
    "reward/outcome": 0.5,
    "reward/rubric": 0.125,
    "agent/tool_calls": 7.25,
    "learn/tokens": 3000,
    "time/rollout_s": 2.0,
    "time/train_s": 1.0,
    "time/sync_s": None,
}


def printed(terminal: bool, *rows) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
    with LiveView(10, done=2, console=console) as view:
        view.phase("rollout")
        for row in rows:
            view.step(row)
    return stream.getvalue()


def test_a_log_gets_one_plain_line_per_step():
    lines = printed(False, ROW, {**ROW, "step": 4}).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "step 3/10  mixed 0.250  outcome 0.500  rubric 0.125  tool calls 7.2  tokens/s 1,000  "
    )
    assert lines[1].startswith("step 4/10  ") and lines[1].endswith(" left")
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_the_panel():
    text = printed(True, ROW)
    assert "3/10" in text and "rollout" in text and "mixed 0.250" in text


def test_time_left_counts_only_own_steps(monkeypatch):
    now = iter([100.0, 100.0, 140.0])
    monkeypatch.setattr("carr_jax.observe.live.time.monotonic", lambda: next(now))
    view = LiveView(10, done=2, console=Console(file=io.StringIO()))
    assert view.seconds_left() is None
    with view:
        view.done = 4
        assert view.seconds_left() == pytest.approx(40 / 2 * 6)


def test_missing_numbers_are_left_out():
    assert step_line({"step": 1, "reward/mixed": None, "reward/outcome": 0.0}) == "outcome 0.000"
    assert step_line({"step": 1, "learn/loss": 0.03125}) == "loss 0.0312"
    held_out = {"step": 1, "learn/loss": 0.03125, "learn/held_out_loss": 0.5}
    assert step_line(held_out) == "loss 0.0312  held-out loss 0.5000"
    assert tokens_per_second({"learn/tokens": 5}) is None


def test_clock():
    assert [clock(None), clock(59.6), clock(3725)] == ["?", "0:01:00", "1:02:05"]


@pytest.mark.parametrize(("steps", "size"), [(0, 0), (1, 1), (2, 1), (7, 3), (20, 10), (419, 10)])
def test_windows_do_not_overlap(steps, size):
    assert window(steps) == size
    assert steps < 2 or 2 * size <= steps


def test_summary_by_hand():
    rows = [
        {"step": i, "reward/mixed": float(i), "carr/connected": None if i < 3 else 2.0} for i in range(1, 25)
    ]
    rows[0]["agent/tool_calls"] = 4.0
    values = {label: (first, last) for label, first, last in first_and_last(rows)}
    assert values["Mixed reward"] == (5.5, 19.5)
    assert values["Rubrics connected"] == (2.0, 2.0)
    assert values["Tool calls"] == (4.0, None)
    assert values["Citations"] == (None, None)
    stream = io.StringIO()
    Console(file=stream, width=100).print(summary_table(rows))
    mixed = next(line for line in stream.getvalue().splitlines() if "Mixed" in line)
    assert [cell.strip() for cell in mixed.strip("│").split("│")] == [
        "Mixed reward",
        "5.500",
        "19.500",
        "+14.000",
    ]
    assert "last 10 of 24 steps" in stream.getvalue()
