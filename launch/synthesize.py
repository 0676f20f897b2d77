"""Makes hard questions from a knowledge graph, with rubrics and hidden entities; what comes out is frozen.

    python launch/synthesize.py world --count=1000 --out=data/questions.jsonl
    python launch/synthesize.py graph.jsonl --count=5000 --strategy=attributes,subgraph --out=data/hard.jsonl
    python launch/synthesize.py graph.jsonl --obfuscate=llm --config=configs/c_grpo_4b.py --out=data/hard.jsonl

GRAPH is a file of entities and facts (carr_jax/data/graph.py), a dump of Wikidata (carr_jax/data/wikidata.py),
or the word world for the built-in world of the configuration.  Each question has exactly one answer in the
graph, names nothing that is to be found out, and is linted.  --obfuscate=plain makes names and dates vague as
far as the graph still has one answer; llm has the model of config.judge word that question, too.

An agent may try each question: search (searches its text once, and reads the ten pages), expert (the scripted
one), engine (config.model.policy, in this process or on config.rollout.servers), or a model behind a chat
endpoint.  Kept are questions that it solves in a share of --attempts between the two numbers of --solved.

The same command goes on after a kill and ends with the same file; a larger --count adds to it.
"""

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from carr_jax import teaching
from carr_jax.attempting import Difficulty, by_teacher, one_search, sifted
from carr_jax.calls.errors import CannotGoOn
from carr_jax.calls.ledger import Prices
from carr_jax.collecting import TeacherStopped, by_rewards
from carr_jax.command import OptionParser, end_well
from carr_jax.data.card import card_of
from carr_jax.data.frozen import manifest_of, rejects_of
from carr_jax.data.graph import read_graph
from carr_jax.data.rewording import reworded
from carr_jax.data.synthesis import STRATEGIES
from carr_jax.data.wikidata import is_wikidata, read_wikidata
from carr_jax.judging import chosen_config, chosen_judge, how_to_go_on, make_judge, open_client
from carr_jax.preflight import endpoint_problems
from carr_jax.records import InputError
from carr_jax.rewards.rejection import Bar
from carr_jax.rewards.rubric_maker import Made, MakerOptions
from carr_jax.rollout.engine import EngineError
from carr_jax.search.world import SPLITS, WorldConfig, build_world
from carr_jax.stored import file_sha256
from carr_jax.synthesizing import Plan, counts, make_file
from carr_jax.task import load_tools, ready
from carr_jax.world_graph import graph_of_world

SHOWN = 8  # reasons that are printed
SHIPPED = Path(__file__).parents[1] / "carr_jax/assets/sft_tiny"  # its tokenizer reads any text
AGENTS = ("none", "search", "expert", "engine")
ALWAYS_THE_SAME = ("none", "search", "expert")


def parse(argv):
    """Raises InputError for what cannot be done."""
    options = OptionParser("synthesize.py", __doc__)
    options.add_argument("graph", metavar="GRAPH", type=Path, help="a graph file, or the word world")
    options.add_argument("--out", type=Path, required=True, help="question file to write, .jsonl")
    options.add_argument("--count", type=int, default=1000, help="questions (default: 1000)")
    options.add_argument("--strategy", default=",".join(STRATEGIES), help="(default: all, %(default)s)")
    options.add_argument("--hops", default="2,3,4", help="facts between two things that a question tells")
    options.add_argument("--most-links", type=int, default=40, help="of a thing on the way; hubs are left out")
    options.add_argument(
        "--split", default="", help="of the graph's entities (default: train of world, else any)"
    )
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--obfuscate", choices=("none", "plain", "llm"), default="plain")
    options.add_argument("--rounds", type=int, default=2, help="repairs of what a model wrote (default: 2)")
    options.add_argument(
        "--agent", metavar=f'{"|".join(AGENTS)}|"URL KEYS NAME"', help="(default: search for world, else none)"
    )
    options.add_argument("--attempts", type=int, default=0, help="(default: 1 of search and expert, else 4)")
    options.add_argument("--budget-usd", type=float, default=0.0, help="of an agent behind URL; 0 is no limit")
    options.add_argument("--prices", default="0,0,0", help="of its million tokens: PROMPT,CACHED,REPLY")
    options.add_argument("--solved", default="", help="LEAST,MOST (default: 1,1 for expert, else 0,0)")
    return _checked(options.own(argv))


def _checked(given):
    """With the defaults that depend on each other.  Raises InputError."""
    if given.out.suffix != ".jsonl" or given.out.is_dir():
        raise InputError(f"--out={given.out} must be a file that ends in .jsonl")
    if given.out.resolve() == given.graph.resolve():
        raise InputError(f"--out={given.out} must not be the file that is read")
    given.strategy = tuple(given.strategy.split(","))
    if unknown := [name for name in given.strategy if name not in STRATEGIES]:
        raise InputError(f"--strategy={unknown[0]} is not one of {', '.join(STRATEGIES)}")
    given.hops = tuple(map(int, _numbers("--hops", given.hops, 1, 8)))
    given.agent = given.agent or ("search" if given.graph == Path("world") else "none")
    given.attempts = given.attempts or (1 if given.agent in ALWAYS_THE_SAME else 4)
    given.solved = given.solved or ("1,1" if given.agent == "expert" else "0,0")
    shares = _numbers("--solved", given.solved, 0, 1)
    if len(shares) != 2 or shares[0] > shares[1]:
        raise InputError(f"--solved={given.solved} must be two shares, such as 0,0.5")
    given.difficulty = Difficulty(given.attempts, *shares)
    if given.agent not in AGENTS:
        if len(given.agent.split()) != 3:
            raise InputError(f'--agent must be {", ".join(AGENTS)} or "URL KEYS NAME"')
        if problems := endpoint_problems("--agent", [given.agent]):
            raise InputError("cannot start: " + "; ".join(problems))
    prices = _numbers("--prices", given.prices, 0, 1_000_000)
    if len(prices) != 3:
        raise InputError(f"--prices={given.prices} must be three numbers: of prompt, cached prompt and reply")
    given.prices = Prices(*prices)
    if min(given.count, given.most_links, given.attempts) < 1 or given.rounds < 0:
        raise InputError("--count, --most-links and --attempts must be positive, --rounds not negative")
    return given


def _numbers(option, text, least, most):
    """The numbers of a list with commas.  Raises InputError."""
    try:
        numbers = [float(part) if "." in part else int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(least <= number <= most for number in numbers):
        raise InputError(f"{option}={text} must be numbers from {least} to {most} with commas between")
    return numbers


def graph_of(given, config):
    """(graph, plan, what made it).  Raises InputError for what cannot be read."""
    knobs = dict(
        strategies=given.strategy,
        hops=given.hops,
        most_links=given.most_links,
        seed=given.seed,
        obscure=given.obfuscate != "none",
    )
    if given.graph == Path("world"):
        settings = config.world.to_dict()
        split = given.split or "train"
        if split not in SPLITS:
            raise InputError(f"--split={split} is not one of {', '.join(SPLITS)}")
        graph = graph_of_world(build_world(WorldConfig(**settings)))
        return graph, Plan("world", split=split, **knobs), {"world": settings}
    graph = read_wikidata(given.graph) if is_wikidata(given.graph) else read_graph(given.graph)
    name = given.graph.name.partition(".")[0]
    return graph, Plan(name, split=given.split, **knobs), {"graph_sha256": file_sha256(given.graph)}


@asynccontextmanager
async def rewording(given, config):
    """What makes a question of a candidate, before anybody tries it."""

    async def as_it_is(question):
        return Made(question)

    if given.obfuscate != "llm":
        yield as_it_is
        return
    judge = config.judge
    options = MakerOptions(given.rounds, judge.temperature, judge.max_tokens, judge.tries)
    async with open_client(config, given.out.parent) as (client, cache):
        yield lambda question: reworded(question, client, cache, options)


@asynccontextmanager
async def trying(given, config):
    """The agent that tries the questions, or None.  Raises InputError for one that has nothing to search."""
    if given.agent == "none":
        yield None
        return
    in_memory = config.search.source == "corpus" and not config.search.index.path
    if in_memory and (config.data.source == "world") != (given.graph == Path("world")):
        raise InputError(
            "the agent must search the pages of the graph: give a --config whose section search or data names "
            "them, or --agent=none"
        )
    if given.agent == "search":
        tools = load_tools(config)
        async with ready(tools, given.out.parent):
            yield one_search(tools)
        return
    if not config.model.policy and not config.model.tokenizer:
        config.model.tokenizer = str(SHIPPED)
    bar = Bar(1.0, 1.0 if given.agent == "expert" else 0.0)
    who = teaching.Options(
        given.graph, given.out.parent, given.agent, budget_usd=given.budget_usd, prices=given.prices
    )
    rollouts = teaching.make_rollouts(config)
    async with (
        make_judge(config, given.out.parent) as judge,
        ready(rollouts.tools, given.out.parent),
        teaching.teaching(who, config, rollouts, {}) as play,
    ):
        yield by_teacher(play, by_rewards(judge, bar, citations=config.reward.citations), bar)


async def make(given, argv, config, graph, plan, how, progress):
    """Raises InputError when the budget, the keys or the disk are at an end; what was made is kept."""
    try:
        async with rewording(given, config) as word, trying(given, config) as attempt:

            async def finish(question):
                made = await word(question)
                return await sifted(made, attempt, given.difficulty) if attempt and made.question else made

            at_once = config.judge.concurrency
            command = " ".join(["python", *argv])
            return await make_file(graph, plan, given.count, given.out, finish, how, at_once, progress, command)
    except TeacherStopped as error:
        raise InputError(str(error).replace("--teacher", "--agent")) from None
    except EngineError as error:
        raise InputError(f"{error}; the same command goes on from here") from error
    except CannotGoOn as error:
        raise InputError(how_to_go_on(error)) from None


def run(argv):
    given = parse(argv)
    with_model = given.obfuscate == "llm"
    config = chosen_judge(argv, given.out.parent) if with_model else chosen_config(argv)
    if with_model and config.judge.kind != "llm":
        raise InputError("no model to ask: give a --config with judge.kind=llm, or another --obfuscate")
    graph, plan, how = graph_of(given, config)
    how |= {"obfuscate": given.obfuscate, "agent": given.agent.split()[-1]}
    how |= {"attempts": given.attempts, "solved": given.solved} if given.agent != "none" else {}
    if given.agent == "engine" and not config.model.policy:
        raise InputError("--agent=engine needs config.model.policy, the folder of the policy that tries")
    how |= {"model": config.judge.model, "rounds": given.rounds} if with_model else {}
    console = Console(highlight=False)
    columns = (TextColumn("questions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=given.count)
        report = asyncio.run(
            make(given, argv, config, graph, plan, how, lambda done: bar.update(task, completed=done))
        )
    show(report, given, console)
    console.print(
        f"{given.out} is frozen by {manifest_of(given.out).name}; see {card_of(given.out).name}",
        markup=False,
        soft_wrap=True,
    )


def show(report, given, console):
    """The statistics, and what to do about questions whose fate is not known."""
    number = counts(report)

    def say(text, style=""):
        console.print(text, style=style, markup=False, soft_wrap=True)

    say(
        f"{number['questions']:,} questions ({report.kept:,} were done before) of {report.candidates:,} "
        f"candidates, {number['rubrics_per_question']:.1f} rubrics and {number['entities_per_question']:.1f} "
        "hidden entities each; all have one answer in the graph, and the linter has nothing to say"
    )
    for name in ("strategies_of_questions", "hops_of_questions"):
        said = ", ".join(f"{key} {count:,}" for key, count in number[name].items())
        say(f"{name.replace('_', ' ')}: {said}")
    if report.calls:
        say(f"{report.calls:,} calls, {report.tokens:,} tokens, ${report.cost_usd:,.2f}", "dim")
    for reason, count in sorted(report.refused.items(), key=lambda item: -item[1])[:SHOWN]:
        say(f"  {count:,} refused: {reason}", "yellow")
    if report.rejected:
        say(f"  those that were tried in vain stand in {rejects_of(given.out).name}", "yellow")
    if report.failed:
        name, reason = next(iter(report.failed.items()))
        raise InputError(
            f"of {len(report.failed):,} questions nothing is known, as of {name} ({reason}); "
            "the same command asks again"
        )


def main(argv):
    return end_well(lambda: run(argv), argv[0], "the same command goes on")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
