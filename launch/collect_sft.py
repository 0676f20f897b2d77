"""Collects traces to fine-tune on: a teacher answers questions with our tools, and what earns enough is kept.

    python launch/collect_sft.py world --config=configs/c_grpo_tiny.py --teacher=expert --out=data/traces
    python launch/collect_sft.py questions.jsonl --config=configs/c_grpo_4b.py --config.model.policy=DIR \\
        --teacher="https://api.example.com/v1 KEY_VARIABLE model-name" --attempts=4 --out=data/traces
    python launch/collect_sft.py questions.jsonl --config=configs/c_grpo_4b.py --config.model.policy=DIR \\
        --teacher=engine --config.rollout.servers='("http://HOST:30000",)' --min-outcome=0 --out=data/traces_2

FILE is a question file or a folder of them, the word world for the built-in world of the configuration, or with
--teacher=history a file of conversations.  The configuration is one for reinforcement learning: it names the
tools, the limits of an episode, the judge, and the policy whose tokens the traces are.  Kept are, of each
question, the best --keep of --attempts that are well-formed, within the limits, and reach --min-outcome and
--min-rubric.  The same command goes on after a kill, and asks again for what failed.

--without-answers collects by rubrics alone: gold answers, if there are any, are put away before a judge sees
them.  It needs an LLM judge and --min-outcome=0.
"""

import asyncio
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from carr_jax import teaching
from carr_jax.collecting import TeacherStopped
from carr_jax.command import OptionParser, end_well
from carr_jax.judging import chosen_config, how_to_go_on
from carr_jax.llm.errors import CannotGoOn
from carr_jax.llm.ledger import Prices
from carr_jax.records import InputError
from carr_jax.rewards.rejection import Bar
from carr_jax.rollout.engine import EngineError


def parse(argv):
    """Raises InputError for what cannot be done."""
    options = OptionParser("collect_sft.py", __doc__)
    options.add_argument("file", metavar="FILE", type=Path, help="questions, conversations, or the word world")
    options.add_argument("--teacher", required=True, metavar='expert|engine|history|"URL KEYS NAME"')
    options.add_argument("--out", type=Path, required=True, help="folder of traces")
    options.add_argument(
        "--split", default="", help="questions of this split (default: sft of world, else all)"
    )
    options.add_argument("--attempts", type=int, default=1, help="at each question (default: 1)")
    options.add_argument("--keep", type=int, default=1, help="most traces of a question (default: 1)")
    options.add_argument("--min-outcome", type=float, default=1.0, help="of a trace (default: 1)")
    options.add_argument("--min-rubric", type=float, default=1.0, help="of a trace (default: 1)")
    options.add_argument("--without-answers", action="store_true", help="rubrics alone decide")
    options.add_argument("--wander", type=float, default=0.0, help="how often the expert opens another page")
    options.add_argument("--budget-usd", type=float, default=0.0, help="of the teacher; 0 is no limit")
    options.add_argument(
        "--prices", default="0,0,0", help="US dollars of his million tokens: PROMPT,CACHED,REPLY"
    )
    return options.own(argv)


def run(argv):
    given, config = parse(argv), chosen_config(argv)
    options = teaching.Options(
        given.file,
        given.out,
        given.teacher,
        given.split,
        given.attempts,
        given.keep,
        Bar(given.min_outcome, given.min_rubric),
        not given.without_answers,
        given.wander,
        given.budget_usd,
        prices_of(given.prices),
    )
    console = Console(highlight=False)
    columns = (TextColumn("attempts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        work = teaching.run_collection(
            options,
            config,
            shlex.join(["python", *argv]),
            lambda count: bar.update(task, total=count),
            lambda attempt: bar.advance(task),
        )
        try:
            facts = asyncio.run(work)
        except EngineError as error:
            raise InputError(f"{error}; the same command goes on from here") from error
        except TeacherStopped as error:
            raise InputError(str(error)) from None
        except CannotGoOn as error:
            raise InputError(how_to_go_on(error)) from None
    for name, value in facts.items():
        said = f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
        console.print(f"{name}: {said}", markup=False, soft_wrap=True)
    console.print(f"{given.out} is frozen", markup=False, soft_wrap=True)


def prices_of(text):
    """Raises InputError for anything but three numbers."""
    try:
        prompt, cached, completion = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--prices={text} must be three numbers: of prompt, cached prompt and reply") from None
    return Prices(prompt, cached, completion)


def main(argv):
    return end_well(lambda: run(argv), argv[0], "the same command goes on")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
