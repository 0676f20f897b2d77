"""Our optimiser step beside tunix and torch, in turn, each in its own process; prints tables and writes JSON.

    python benchmarks/compare.py --tunix-python=VENV/bin/python --torch-python=VENV/bin/python \
        --shape=16x512 --shape=4x2048 --moe --remat

Every side trains the same weights on the same tokens, and must report the same gradient norm: the whole batch
at once, and again in micro-batches.  A peer without a python is left out.  See README.md for what the sides do
and what the bars are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import shape_of

HERE = Path(__file__).parent
SCRIPTS = {"ours": "train_step.py", "tunix": "peer_tunix.py", "torch": "peer_torch.py"}
SAME_NORM = 1e-3  # relative; torch sums its norm in fp32 and is off by 1e-4
MEMORY_BAR = 0.5


def time_bar(peer: str, tokens: int) -> float:
    """Largest allowed ratio of our CPU seconds to those of the peer."""
    return 1.3 if peer == "torch" else 0.6 if tokens <= 512 else 0.5


def main() -> None:
    args = options()
    os.sched_setaffinity(0, {int(core) for core in args.cores.split(",")})  # those started here inherit it
    pythons = {"ours": sys.executable, "tunix": args.tunix_python, "torch": args.torch_python}
    pythons = {side: python for side, python in pythons.items() if python}
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for moe in (False, True) if args.moe else (False,):
            weights = Path(folder) / ("moe" if moe else "dense")
            for shape in args.shape:
                rows = in_turn(pythons, shape, moe, weights, args)
                results += (summary := summarise(rows))
                print("\n" + table(shape, moe, summary), flush=True)
    if args.json:
        about = {
            "machine": platform.processor() or platform.machine(),
            "cores": args.cores,
            "rounds": args.rounds,
        }
        args.json.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tunix-python", help="python of an environment with google-tunix")
    p.add_argument("--torch-python", help="python of an environment with torch and transformers")
    p.add_argument("--shape", action="append", help="rows x tokens; may be given several times")
    p.add_argument("--moe", action="store_true", help="measure the mixture of experts, too")
    p.add_argument("--remat", action="store_true", help="measure each side with recomputation, too")
    p.add_argument("--micro", type=int, action="append", help="tokens of a micro-batch; 0 = all; several times")
    p.add_argument("--rounds", type=int, default=3, help="how often each side has its turn")
    p.add_argument("--steps", type=int, default=3, help="timed steps of one turn")
    p.add_argument("--cores", default="0", help="cores that every side runs on, such as 0 or 0,1")
    p.add_argument("--json", type=Path, help="file for all figures")
    args = p.parse_args()
    args.shape, args.micro = args.shape or ["16x512"], args.micro or [0, 4096]
    return args


def in_turn(
    pythons: dict[str, str], shape: str, moe: bool, weights: Path, args: argparse.Namespace
) -> list[dict]:
    """What each side reports in each round; the first to go makes the weights, so that is ours."""
    modes = (False, True) if args.remat else (False,)
    variants = list(itertools.product(modes, args.micro, pythons))
    rows = []
    for number in range(args.rounds):
        for remat, micro, side in variants[number % len(variants) :] + variants[: number % len(variants)]:
            micro //= shape_of(shape)[1]  # rows
            flags = [f"--weights={weights}", f"--shape={shape}", f"--steps={args.steps}", f"--micro={micro}"]
            flags += ["--moe"] * moe + ["--remat"] * remat
            rows.append(one_turn(pythons[side], SCRIPTS[side], flags, args.cores))
            print(f"# round {number + 1} of {args.rounds}: {one_line(rows[-1])}", file=sys.stderr, flush=True)
    return rows


def one_turn(python: str, script: str, flags: list[str], cores: str) -> dict:
    """The JSON line of a side.  Raises SystemExit with the side's own words when it fails."""
    threads = str(len(cores.split(",")))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    done = subprocess.run([python, HERE / script, *flags], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one_line(row: dict) -> str:
    return f"{name(row)} {row['median']} s, {row['peak_mib']} MiB"


def summarise(rows: list[dict]) -> list[dict]:
    """One row for each side and variant: all timed steps of all rounds together, the median of the peaks."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["side"], row["remat"], row["micro"]), []).append(row)
    summary = []
    for group in groups.values():
        seconds = [s for row in group for s in row["seconds"]]
        merged = {"seconds": seconds, "min": min(seconds), "median": statistics.median(seconds)}
        merged |= {k: statistics.median(row[k] for row in group) for k in ("first", "before_mib", "peak_mib")}
        summary.append(group[0] | merged)
    return summary


def table(shape: str, moe: bool, summary: list[dict]) -> str:
    """Figures and ratios of one shape as Markdown."""
    lines = [
        f"{shape} {'MoE' if moe else 'dense'}, CPU seconds of one step",
        "",
        "| side | min | median | first | peak MiB | of which before the step | gradient norm |",
        "|" + " --- |" * 7,
    ]
    for r in summary:
        figures = f"{r['min']:.2f} | {r['median']:.2f} | {r['first']:.1f} | {r['peak_mib']:.0f}"
        lines.append(f"| {name(r)} | {figures} | {r['before_mib']:.0f} | {r['grad_norm']:.5f} |")
    lines += [
        "",
        "| ratio | time min | time median | bar | peak memory | bar |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for ours in (r for r in summary if r["side"] == "ours"):
        same = [r for r in summary if all(r[k] == ours[k] for k in ("remat", "micro"))]
        lines += [ratio(ours, peer) for peer in same if peer is not ours]
    return "\n".join(lines)


def name(row: dict) -> str:
    rows = "" if row["micro"] == row["rows"] else f", {row['micro']} rows at a time"
    return row["side"] + rows + ", with remat" * row["remat"]


def ratio(ours: dict, peer: dict) -> str:
    """One line of the table; the bars are for the whole batch without recomputation.

    Raises SystemExit when the two did not compute the same gradient.
    """
    if abs(ours["grad_norm"] / peer["grad_norm"] - 1) > SAME_NORM:
        raise SystemExit(f"not the same work: gradient norms {ours['grad_norm']} and {peer['grad_norm']}")
    low, middle = (ours[k] / peer[k] for k in ("min", "median"))
    memory = ours["peak_mib"] / peer["peak_mib"]
    bar = memory_bar = "-"
    if not ours["remat"] and ours["micro"] == ours["rows"]:
        bar = judged(middle, time_bar(peer["side"], ours["tokens"]))
        memory_bar = judged(memory, MEMORY_BAR) if peer["side"] == "tunix" else "-"
    return f"| {name(ours)} / {name(peer)} | {low:.2f} | {middle:.2f} | {bar} | {memory:.2f} | {memory_bar} |"


def judged(value: float, bar: float) -> str:
    return f"{bar} {'met' if value <= bar else 'MISSED'}"


if __name__ == "__main__":
    main()
