"""Makes rubrics for questions, once, before training; what comes out is frozen.

    python launch/rubrics.py questions.jsonl --config=configs/c_grpo_4b.py --out=data/rubrics.jsonl
    python launch/rubrics.py twowiki.jsonl --from-evidence --out=data/rubrics.jsonl
    python launch/rubrics.py world --from-evidence --out=data/world.jsonl
    python launch/rubrics.py data/world.jsonl --variants --config=configs/c_grpo_4b.py --out=data/named.jsonl

FILE is a question file or a folder of them (carr_jax/data/sources.py), or the word world for the built-in world
of the configuration.  The model of config.judge takes each question apart; what it writes is linted, and the
findings go back to it at most --rounds times.  What stays unclean stands in OUT.rejects with its findings.
--from-evidence asks nobody: it takes the rubrics that the evidence gives.  --variants leaves rubrics as they
are, and has the model write other names of the hidden entities: E-GRPO looks for them, too, with
config.reward.entity_names=robust.  The same command goes on after a kill.  A manifest with a SHA-256 stands
beside OUT; a run that is given OUT after a change refuses to start.  OUT.card.md tells a person what is in it.
"""

import asyncio
import shlex
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from carr_jax.calls.errors import CannotGoOn
from carr_jax.command import OptionParser, end_well
from carr_jax.data.frozen import manifest_of, rejects_of
from carr_jax.data.sources import read_questions
from carr_jax.decomposing import counts, make_file
from carr_jax.judging import chosen_config, chosen_judge, how_to_go_on, open_client
from carr_jax.records import InputError
from carr_jax.rewards.rubric_maker import MakerOptions, from_evidence, make_rubrics
from carr_jax.rewards.variants import make_variants
from carr_jax.search.world import WorldConfig, build_world

SHOWN = 5  # reasons that are printed


def parse(argv):
    """Raises InputError for what cannot be done."""
    options = OptionParser("rubrics.py", __doc__)
    options.add_argument("file", metavar="FILE", type=Path, help="questions, or the word world")
    options.add_argument("--out", type=Path, required=True, help="question file to write, .jsonl")
    options.add_argument("--rounds", type=int, default=3, help="repairs of rubrics (default: 3)")
    options.add_argument("--from-evidence", action="store_true", help="ask no model")
    options.add_argument("--variants", action="store_true", help="other names of entities instead of rubrics")
    given = options.own(argv)
    if given.out.suffix != ".jsonl" or given.out.is_dir():
        raise InputError(f"--out={given.out} must be a file that ends in .jsonl")
    if given.out.resolve() == given.file.resolve():
        raise InputError(f"--out={given.out} must not be the file that is read")
    if given.variants and given.from_evidence:
        raise InputError(
            "--variants are written by a model, and --from-evidence asks none; give one of the two"
        )
    if given.rounds < 0:
        raise InputError(f"--rounds={given.rounds} must not be negative")
    return given


def questions_of(given, config):
    """Raises InputError for what cannot be read."""
    if given.file != Path("world"):
        return read_questions(given.file)
    world = build_world(WorldConfig(**config.world.to_dict()))
    sizes = {"train": config.data.train_questions, "held_out": config.data.held_out_questions}
    return [q for split, count in sizes.items() for q in world.questions(split, count)]


async def make(given, config, questions, progress):
    """Raises InputError when the budget, the keys or the disk are at an end; what was made is kept."""
    how = {
        "source": given.file.name,
        "by": "evidence" if given.from_evidence else config.judge.model,
        "command": given.command,
    }
    if given.from_evidence:

        async def one(question):
            return from_evidence(question)

        return await make_file(questions, given.out, one, how, progress=progress)
    judge, work = config.judge, make_variants if given.variants else make_rubrics
    options = MakerOptions(given.rounds, judge.temperature, judge.max_tokens, judge.tries)
    try:
        async with open_client(config, given.out.parent) as (client, cache):
            return await make_file(
                questions,
                given.out,
                lambda question: work(question, client, cache, options),
                {**how, **({"made": "variants"} if given.variants else {"rounds": given.rounds})},
                judge.concurrency,
                progress,
            )
    except CannotGoOn as error:
        raise InputError(how_to_go_on(error)) from None


def run(argv):
    given = parse(argv)
    given.command = shlex.join(["python", *argv])
    config = chosen_config(argv) if given.from_evidence else chosen_judge(argv, given.out.parent)
    if not given.from_evidence and config.judge.kind != "llm":
        raise InputError("no model to ask: give a --config with judge.kind=llm, or --from-evidence")
    questions = questions_of(given, config)
    console = Console(highlight=False)
    columns = (TextColumn("rubrics"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(questions))
        report = asyncio.run(make(given, config, questions, lambda made: bar.advance(task)))
    show(report, given, console)


def show(report, given, console):
    """The statistics, and what to do about questions without rubrics."""
    number = counts(report)
    console.print(
        f"{number['questions']:,} questions ({report.kept:,} were done before), {number['rubrics']:,} rubrics "
        f"({number['rubrics_per_question']:.1f} each), {number['entities']:,} hidden entities "
        f"({number['entities_per_question']:.1f} each)",
        soft_wrap=True,
    )
    if report.calls:
        console.print(f"{report.calls:,} calls, {report.tokens:,} tokens, ${report.cost_usd:,.2f}", style="dim")
    if report.rejected:
        console.print(f"{len(report.rejected):,} refused, see {rejects_of(given.out)}:", style="yellow")
        reasons = Counter(kind(r.findings[0]) for r in report.rejected)
        for reason, count in reasons.most_common(SHOWN):
            console.print(f"  {count:,} times: {reason}", style="yellow", markup=False, soft_wrap=True)
    if report.failed:
        name, reason = next(iter(report.failed.items()))
        raise InputError(
            f"{len(report.failed):,} questions got no usable reply, as {name} ({reason}); "
            "the same command asks again"
        )
    console.print(f"{given.out} is frozen by {manifest_of(given.out).name}", markup=False, soft_wrap=True)


def kind(finding):
    """A finding without the rubric that it is about."""
    return finding.partition('") ')[2] or finding


def main(argv):
    return end_well(lambda: run(argv), argv[0], "the same command goes on")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
