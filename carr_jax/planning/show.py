"""A plan on the terminal: readable in 100 columns, with and without colours."""

from __future__ import annotations

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from carr_jax.planning.plan import UTILISATIONS, Plan

_PARTS = (
    ("weights", "weights", "fp32 master weights"),
    ("optimizer", "optimiser", "AdamW's moments"),
    ("batch", "batch", "packed rows of the whole step"),
    ("gradients", "gradients", "sums over the micro-batches"),
    ("activations", "activations", "kept for the backward pass"),
    ("temporaries", "temporaries", "gathered weights, logits, ..."),
)
_BAR = 24
_WIDTH = 100


def show(plan: Plan, config_name: str, console: Console | None = None) -> None:
    """Prints the plan."""
    console = console or Console(width=_WIDTH, highlight=False)
    verdict = Text("fits", "bold green") if plan.fits else Text("does not fit", "bold red")
    title = Text.assemble("\n", (config_name, "bold"), " on ", (plan.topology.name, "bold"), "   ", verdict)
    blocks = [title, Text(), _memory(plan), Text(), _step(plan)]
    if plan.knobs:
        blocks += [Text(), Text("To make it fit, the largest first", "bold")]
        blocks += [Text(f"  {line}") for line in plan.knobs[:4]]
    console.print(Padding(Group(*blocks), (0, 2, 1, 2)))


def _memory(plan: Plan) -> Table:
    """One line for each part of a chip's memory, with a bar relative to what there is."""
    memory = plan.memory
    full = max(memory.limit, memory.peak)
    unit, scale = ("GiB", 1) if memory.peak >= 0.5 else ("MiB", 1024)
    table = _table("Memory of one chip", (unit, "right"), ("", "left"), ("", "left"))
    for name, title, note in _PARTS:
        gib = getattr(memory, name)
        table.add_row(title, f"{gib * scale:.2f}", Text(_bar(gib / full), "cyan"), Text(note, "dim"))
    colour = "green" if plan.fits else "red"
    said = {
        "compiler": "stated by the compiler",
        "compiler (refused)": "stated by the compiler, which refuses it",
        "estimate": "an estimate: no compiler without a GPU",
    }
    peak = (
        Text("peak", "bold"),
        Text(f"{memory.peak * scale:.2f}", "bold"),
        Text(_bar(memory.peak / full), colour),
    )
    table.add_row(*peak, Text(said[plan.source], "dim"), end_section=False)
    table.add_row("limit", f"{memory.limit * scale:.2f}", Text(_bar(memory.limit / full), "bright_black"), "")
    if memory.host:
        table.add_row("on the host", f"{memory.host * scale:.2f}", "", Text("for each chip", "dim"))
    return table


def _step(plan: Plan) -> Table:
    """What one optimiser step is and how long it takes."""
    step = plan.step
    micro, rows, length = step.batch_shape
    axes = " x ".join(f"{name} {size}" for name, size in step.mesh.shape.items() if size > 1) or "one device"
    table = _table("One optimiser step", ("", "left"))
    table.add_row("loss, model", f"{step.loss}, {step.source}")
    table.add_row("mesh", f"{axes}  ({plan.topology.chips} chips)")
    table.add_row("batch", f"{step.rows} rows of {length:,} tokens: {micro} micro-batches of {rows}")
    table.add_row("tokens", f"{plan.tokens:,}")
    table.add_row("model FLOPs", f"{_si(plan.flops)}  (causal, 3 x forward)")
    if plan.program_ratio is not None:
        table.add_row("program FLOPs", f"{plan.program_ratio:.2f} x that, recomputation included")
    times = "   ".join(f"{_seconds(plan.seconds(u))} s at {u:.0%}" for u in UTILISATIONS)
    table.add_row("time", f"{times} of the peak")
    if plan.moved:
        parts = ", ".join(f"{kind} {size:.3g}" for kind, size in sorted(plan.moved.items()) if size >= 1e-3)
        ideal = "" if not plan.ideal else f"  (ideal {plan.ideal:.3g} in all)"
        table.add_row("traffic", f"{parts or 'none'} GB per chip and micro-batch{ideal}")
    table.add_row("compiling", f"{plan.trace_seconds:.0f} s to trace, {plan.compile_seconds:.0f} s to compile")
    return table


def _table(title: str, *columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(title, no_wrap=True, min_width=18)
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")
    return table


def _bar(share: float) -> str:
    """Whole and half blocks; something that is there is never invisible."""
    halves = round(share * 2 * _BAR)
    return "━" * (halves // 2) + "╸" * (halves % 2) if halves or share <= 0 else "╸"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds >= 1 else f"{seconds:.2g}"


def _si(flops: float) -> str:
    for unit, size in (("EFLOP", 1e18), ("PFLOP", 1e15), ("TFLOP", 1e12)):
        if flops >= size:
            return f"{flops / size:,.1f} {unit}"
    return f"{flops / 1e9:,.2f} GFLOP"
