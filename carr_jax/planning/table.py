"""The plans of the documentation: which, and the table that they make."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One plan: a file of configs/ without its ending, a topology, fields that differ, and what it shows."""

    config: str
    topology: str
    fields: Mapping[str, Any]
    note: str = ""

    def command(self) -> list[str]:
        """Its arguments after the name of the script."""
        fields = [f"--config.{key}={value}" for key, value in self.fields.items()]
        return [f"--config=configs/{self.config}.py", f"--topology={self.topology}", *fields]


PLANS = (
    Entry("c_grpo_4b", "v6e:4x4", {}),
    Entry("c_grpo_4b", "v6e:2x2", {"mesh.context": 4, "model.remat": "full"}, "smallest slice"),
    Entry("c_grpo_4b", "v5p:2x2x4", {}),
    Entry("c_grpo_4b", "v5p:2x2x4", {"learn.logprob_chunk": 65_536}, "all logits at once"),
    Entry("c_grpo_4b", "h200:8", {}),
    Entry("c_grpo_30b", "v6e:8x8", {}),
    Entry("c_grpo_30b", "v6e:4x4", {"learn.moments": "host", "model.remat": "full"}, "smallest slice"),
    Entry("c_grpo_30b", "v5p:2x2x4", {}),
    Entry("c_grpo_30b", "h200:32", {}),
    Entry("sft_4b", "v6e:4x4", {}),
    Entry("sft_30b", "v6e:8x8", {}),
)

_HEAD = """# Plans

What the real training steps need, on chips that nobody had to rent for this. Made by `make plans`; do not edit.

Memory is GiB of one chip, as the TPU compiler states it for the whole optimiser step, all its trajectories at
full length (the worst case); for GPUs, where there is no compiler without a GPU, it is an estimate (~).
"State" is what is there before the step. FLOPs are causal and without recomputation (3 x forward); "program"
is what the step performs over that. Seconds are of the optimiser step alone, at three shares of the chips'
peak in bf16. "Moved" is GB that a chip exchanges in one micro-batch, beside the ideal. One plan by hand:

    python launch/plan.py --config=configs/c_grpo_4b.py --topology=v6e:4x4

"""
_COLUMNS = (
    *("configuration", "topology", "mesh", "rows x tokens", "state", "peak", "limit", "fits"),
    *("PFLOP", "program", "s at 40 / 50 / 60 %", "moved / ideal", "note"),
)


def write_table(path: Path, script: Path, plans: Sequence[Entry] = PLANS) -> int:
    """Makes each plan in a process of its own (its devices are fixed when jax is imported), then writes `path`.

    Returns 0 when every plan could be made; whether it fits stands in the table.
    """
    rows = []
    for plan in plans:
        print(f"{plan.config} on {plan.topology} ...", flush=True)
        command = [sys.executable, str(script), *plan.command(), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        rows.append((plan, last_json(done.stdout)))
    path.write_text(markdown(rows), encoding="utf-8")
    print(path)
    return 2 if any("error" in found for _, found in rows) else 0


def last_json(output: str) -> dict[str, Any]:
    """The last line of a command that was given --json, or what went wrong with it."""
    lines = output.strip().split("\n")
    try:
        return json.loads(lines[-1])
    except json.JSONDecodeError:
        return {"error": lines[-1] or "it ended without a word", "fits": False}


def markdown(rows: Sequence[tuple[Entry, Mapping[str, Any]]]) -> str:
    """The document: an introduction and a table with one line for each plan."""
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    lines += [_line(_cells(plan, found)) for plan, found in rows]
    return _HEAD + "\n".join(lines) + "\n"


def _cells(plan: Entry, found: Mapping[str, Any]) -> list[str]:
    fields = ", ".join(f"{key}={value}" for key, value in plan.fields.items())
    note = "; ".join(part for part in (plan.note, fields) if part)
    if "error" in found:
        return [plan.config, plan.topology, *["-"] * 10, f"error: {found['error']}"]
    micro, together, length = found["batch_shape"]
    axes = " x ".join(f"{axis} {n}" for axis, n in found["mesh"].items() if n > 1)
    rough = "~" if found["peak_from"] == "estimate" else ""
    moved = sum(found["traffic_gb_per_micro_step"].values())
    ideal = found["ideal_traffic_gb_per_micro_step"]
    ratio = found["program_flops_ratio"]
    if not found["fits"] and found["knobs"]:
        note = "; ".join(part for part in (note, f"try {found['knobs'][0]}") if part)
    return [
        plan.config,
        plan.topology,
        axes,
        f"{micro} x {together} x {length:,}",
        f"{found['arguments_gib']:.1f}",
        f"{rough}{found['peak_gib']:.1f}",
        f"{found['limit_gib']:.1f}",
        "yes" if found["fits"] else "no",
        f"{found['flops_per_step'] / 1e15:,.0f}",
        f"{ratio:.2f}" if ratio else "-",
        " / ".join(f"{s:,.0f}" for s in found["seconds_at_mfu"].values()),
        f"{moved:,.0f} / {ideal:,.0f}" if moved and ideal else "-",
        note,
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
