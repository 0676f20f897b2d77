"""What a scored file looks like on the terminal: readable in 80 columns, with and without colours."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_BAR = 24
_STEPS = (
    ("rubrics", "of the question", "bright_black"),
    ("identified", "every entity is named", "cyan"),
    ("supported", "a cited page says so", "cyan"),
    ("connected", "leads to the answer", "green"),
)
_ENDS = {
    "answered": ("finished", ""),
    "unknown": ("unknown", "a judge or tool failed; the same command asks again"),
    "format_error": ("ill-formed", "score 0"),
}


def show_verdicts(
    title: str,
    means: Mapping[str, float],
    ends: Mapping[str, int],
    spent: tuple[int, int, float],
    console: Console | None = None,
) -> None:
    """Prints the summary: `means` per finished trajectory, `ends` how many ended how, `spent` on the judge."""
    console = console or Console(highlight=False)
    blocks = [Text(f"\n{title}\n", "bold"), _counts(ends)]
    if means:
        blocks += [Text("\nMeans of a finished trajectory\n", "bold"), _steps(means), Text(), _rewards(means)]
    calls, tokens, dollars = spent
    cost = f"\n{calls:,} judge calls" + f", {tokens:,} tokens, ${dollars:,.2f}" * bool(tokens)
    console.print(Padding(Group(*blocks, Text(cost, "dim")), (0, 2, 1, 2)))


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=13, no_wrap=True)
    table.add_column(justify="right", min_width=6, no_wrap=True)
    return table


def _counts(ends: Mapping[str, int]) -> Table:
    table = _grid()
    for end in sorted(ends, key=lambda name: (list(_ENDS).index(name) if name in _ENDS else len(_ENDS), name)):
        name, note = _ENDS.get(end, (end.replace("_", " "), "score 0"))
        style = "yellow" if end == "unknown" else ""
        table.add_row(Text(name, style), Text(f"{ends[end]:,}", style), Text(note, "dim"))
    return table


def _steps(means: Mapping[str, float]) -> Table:
    """The three steps of CaRR, with bars relative to the rubrics of a question."""
    table = _grid()
    table.add_row("cited pages", f"{means['cited pages']:.2f}", Text("that were seen, 20 at most", "dim"))
    for key, note, style in _STEPS:
        share = means[key] / means["rubrics"] if means["rubrics"] else 0.0
        full = round(_BAR * share)
        bar = Text("█" * full, style).append("·" * (_BAR - full), "bright_black")
        table.add_row(key, f"{means[key]:.2f}", bar.append(f"  {note}", "dim"))
    return table


def _rewards(means: Mapping[str, float]) -> Table:
    table = _grid()
    table.add_row("outcome", Text(f"{means['outcome']:.2f}", "bold"), Text("right answers", "dim"))
    note = Text("connected / rubrics", "dim")
    table.add_row("rubric reward", Text(f"{means['rubric reward']:.2f}", "bold"), note)
    return table
