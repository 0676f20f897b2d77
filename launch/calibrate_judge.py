"""Measures a judge on decisions whose right value is known, before anything is trained on its word.

    python launch/calibrate_judge.py --config=configs/c_grpo_4b.py

Without --labels the set is made from the built-in world: right, wrong, hedged and missing answers, named and
unnamed entities, statements that pages support or not (carr_jax/calibrating.py).  Each call is made --times
times, with other seeds.  A decision that stays unknown is not right.  OUT/report.json holds what was seen:
launch/train.py refuses a judge that is not in it, or was right less often than config.judge.at_least
(carr_jax/gate.py).  With --at-least the exit status of this command is 1, too, when the accuracy of a step is
lower.  Replies, and what they cost, are kept in OUT/judge.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from rich.console import Console
from rich.table import Table

from carr_jax.calibrating import read_labels, world_labels
from carr_jax.command import OptionParser, end_well
from carr_jax.gate import write_report
from carr_jax.judging import chosen_judge, how_to_go_on, judge_name, make_judge
from carr_jax.llm.errors import CannotGoOn
from carr_jax.records import InputError
from carr_jax.rewards.calibration import HUMAN, cost_per_trajectory, judge_labels, measure, mistakes

SHOWN = 5  # mistakes that are printed


def parse(argv):
    """Raises InputError for what cannot be measured."""
    options = OptionParser("calibrate_judge.py", __doc__)
    options.add_argument("--labels", type=Path, help="labels of your own, JSON lines (default: the world)")
    options.add_argument("--times", type=int, default=3, help="how often each call is made (default: 3)")
    options.add_argument("--at-least", type=float, default=0.0, help="lowest accuracy of a step, from 0 to 1")
    options.add_argument("--out", type=Path, default=Path("runs/calibration"), help="folder for replies")
    given = options.own(argv)
    if given.times < 1:
        raise InputError(f"--times={given.times} must be at least 1")
    if not 0 <= given.at_least <= 1:
        raise InputError(f"--at-least={given.at_least} must lie between 0 and 1")
    return given


async def judged(given, config, labels, status):
    """The verdicts of each time.  Raises InputError when the judge cannot go on; its replies are kept."""
    times = []
    try:
        for draw in range(given.times):
            status.update(f"judging {len(labels):,} calls, {draw + 1} of {given.times}")
            async with make_judge(config, given.out, draw) as judge:
                times.append(await judge_labels(labels, judge))
    except CannotGoOn as error:
        raise InputError(how_to_go_on(error)) from None
    return times


def run(argv):
    """The lowest accuracy of a step."""
    given = parse(argv)
    config = chosen_judge(argv, given.out)
    labels = read_labels(given.labels) if given.labels else world_labels()
    console = Console(highlight=False)
    with console.status("judging") as status:
        times = asyncio.run(judged(given, config, labels, status))
    measures = measure(labels, times)
    write_report(given.out / "report.json", config, measures, given.times)
    show(f"The judge {judge_name(config)}, {given.times} times", measures, console)
    for label, decision in mistakes(labels, times[0])[:SHOWN]:
        place = f"{label.step}, {label.kind}, {label.question.id}, {decision.name}"
        console.print(f"not right: {place}: {decision.said}", style="yellow", markup=False, soft_wrap=True)
    worst = min(measures.values(), key=lambda m: m.accuracy).accuracy
    if worst < given.at_least:
        console.print(f"an accuracy of {worst:.1%} is below --at-least={given.at_least:g}", style="red")
        return 1
    return 0


def show(title, measures, console):
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    heads = ("step", "decisions", "right", "humans", "agrees", "unknown", "invalid", "calls")
    for head in heads:
        table.add_column(head, justify="left" if head == "step" else "right")
    for step, m in measures.items():
        human = f"{HUMAN[step]:.1%}" if step in HUMAN else ""
        rates = [f"{rate:.1%}" for rate in (m.agreement, m.unknown, m.invalid)]
        table.add_row(step, f"{m.decisions:,}", f"{m.accuracy:.1%}", human, *rates, f"{m.calls:,}")
    console.print(table)
    note = "humans: agreement of the paper's judge with humans; agrees: the same verdict each time"
    console.print(f"{note}\n${cost_per_trajectory(measures):.4f} for each trajectory", style="dim")


def main(argv):
    status = 0

    def work():
        nonlocal status
        status = run(argv)

    return end_well(work, argv[0], "the same command goes on, with the replies that were kept") or status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
