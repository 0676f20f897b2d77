"""Scores trajectories from anywhere with the rubric rewards of CaRR.

    python launch/score.py runs/tiny/trajectories/step_000001.jsonl.gz
    python launch/score.py dump.jsonl --citations=strict_reference --out=verdicts.jsonl
    python launch/score.py dump.jsonl --config=configs/c_grpo_4b.py --config.judge.budget_usd=5

FILE is .jsonl, .jsonl.gz or .json: our trajectories, histories of the public CaRR code, or rows with question,
answer, response and pages (carr_jax/rewards/history.py).  Verdicts are written beside it, one line each; the
same command keeps those that are known and asks for the others.  The judge is that of the configuration,
without one the exact judge, which compares with gold names; what it replied and cost is kept in judge/ beside
the verdicts.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from rich.console import Console

from carr_jax.calls.errors import CannotGoOn
from carr_jax.command import OptionParser, end_well
from carr_jax.judging import chosen_judge, how_to_go_on, judge_name, make_judge
from carr_jax.observe.verdicts import show_verdicts
from carr_jax.records import InputError
from carr_jax.rewards.carr import READERS
from carr_jax.scoring import ends, means, score_file, spent

SHOWN = 5  # bad rows that are printed


def parse(argv):
    """Raises InputError for what cannot be scored."""
    options = OptionParser("score.py", __doc__)
    options.add_argument("file", metavar="FILE", type=Path, help="trajectories to score")
    options.add_argument("--citations", default="tolerant", metavar="|".join(READERS), help="how they are read")
    options.add_argument("--out", type=Path, help="verdict file (default: FILE.verdicts.jsonl)")
    given = options.own(argv)
    if not given.file.is_file():
        raise InputError(f"{given.file}: there is no such file")
    if given.citations not in READERS:
        raise InputError(f"--citations={given.citations} is not one of {', '.join(READERS)}")
    given.out = given.out or given.file.with_name(given.file.name + ".verdicts.jsonl")
    if given.out.is_dir() or given.out == given.file:
        raise InputError(f"--out={given.out} must be a file of its own")
    return given


async def score(given, config, status):
    """Raises InputError when the judge's budget, keys or disk are at an end; what was scored is kept."""
    name = judge_name(config)
    try:
        async with make_judge(config, given.out.parent) as judge:
            return await score_file(
                given.file,
                given.out,
                judge,
                (name, given.citations),
                lambda n: status.update(f"{n:,} scored"),
            )
    except CannotGoOn as error:
        raise InputError(how_to_go_on(error)) from None


def run(argv):
    given = parse(argv)
    config = chosen_judge(argv, given.out.parent)
    console = Console(highlight=False)
    with console.status("scoring") as status:
        found = asyncio.run(score(given, config, status))
    for row in found.bad[:SHOWN]:
        console.print(f"{row.place}: {row.reason}", style="yellow", markup=False, soft_wrap=True)
    if found.bad:
        console.print(f"{len(found.bad)} bad rows were left out", style="yellow")
    if not found.verdicts:
        raise InputError(f"{given.file}: no trajectories")
    title = f"{given.file.name}, by the judge {judge_name(config)}, {given.citations} citations"
    show_verdicts(title, means(found.verdicts), ends(found.verdicts), spent(found.verdicts), console)
    if reasons := Counter(v.score.reason for v in found.verdicts if not v.score.known):
        reason, count = reasons.most_common(1)[0]
        console.print(f"unknown, {count:,} times: {reason}", style="yellow", markup=False, soft_wrap=True)
    before = f" ({found.kept:,} were there already)" if found.kept else ""
    console.print(f"{len(found.verdicts):,} verdicts in {given.out}{before}", markup=False, soft_wrap=True)


def main(argv):
    return end_well(lambda: run(argv), argv[0], "the same command goes on")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
