"""Many steps of rollouts in fake time: the real scheduler, episodes and pool around pretended servers.

    python benchmarks/rollout_sim.py [--staleness=0,1,2,4] [--slots=64] [--steps=16] [--on-update=resume]

Turn lengths, numbers of turns, tool and judge latencies have long tails (99th percentile = 20 times the median;
at most 100 tool turns).  The clock jumps from event to event: hours pass in a minute, and runs are always the
same.  For each staleness: seconds of a step against the bound that no schedule can beat, how busy the slots
were, and how much was prefilled for each new token.  See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import json
import logging
import math
import random
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from fake_time import FakeTimeLoop

from carr_jax.agent.chat import Chat, render_turn
from carr_jax.agent.episode import Budgets
from carr_jax.agent.tokenizer import train_bpe
from carr_jax.models.config import PRESETS, to_hf_config
from carr_jax.records import End, Question, Score, ToolCall, ToolResult
from carr_jax.rollout.fleet import Fleet, PoolOptions
from carr_jax.rollout.messages import Reply
from carr_jax.rollout.pool import SGLangPool
from carr_jax.rollout.scheduler import Rollouts, Scheduler, Stream
from carr_jax.rollout.sglang import Capabilities
from carr_jax.rollout.staleness import StalenessGate

SCALE = 16  # real tokens for each simulated one: times are real, ids are few
TAIL = math.log(20) / 2.326  # sigma of a log-normal whose 99th percentile is 20 times its median
GROUP, PROMPTS = 8, 16
NEVER = 1e9  # seconds
SESSION = re.compile(r"q\d+/\d+/\d+")  # question, sample and seed

QUESTION = "Which river?"
_SEARCH, _ANSWER = (
    render_turn("", "", [ToolCall("browser.search", {"query": "river"})]),
    render_turn("", "Dove."),
)


def small_chat() -> Chat:
    """A tokenizer that has learned the fixed texts by heart, so that they are few tokens."""
    first = Chat(train_bpe([_SEARCH, _ANSWER] * 3, 300))
    prompt = first.tokenizer.decode(first.prompt_ids(QUESTION))
    return Chat(
        train_bpe([_SEARCH, _ANSWER, prompt, first.tokenizer.decode(first.observation_ids(["t"]))] * 9, 2000)
    )


CHAT = small_chat()
FILLER = CHAT.tokenizer.encode_plain("t")[0]
SEARCH, ANSWER = (CHAT.tokenizer.encode_control(text) for text in (_SEARCH, _ANSWER))
STOP = CHAT.tokenizer.stop_ids[0]
PROMPT = CHAT.prompt_ids(QUESTION)
HEADER = PROMPT[::-1].index(STOP)  # tokens between the end of a user's turn and the first that is sampled


@dataclasses.dataclass(frozen=True)
class World:
    """What takes how long, in real tokens and seconds."""

    servers: int = 8
    slots: int = 64  # of all servers
    in_flight: int = 192  # episodes: three times the slots, because each waits for tools a part of its time
    decode_s: float = 0.02  # of one token in one slot
    prefill: float = 20_000.0  # tokens a second
    train_s: float = 60.0
    load_s: float = 3.0  # for a server to take new weights
    turns: float = 20.0  # medians
    turn_tokens: float = 250.0
    tool_tokens: float = 1000.0
    tool_s: float = 1.5
    judge_s: float = 5.0


def draw(median: float, most: float, *key: object) -> float:
    """A log-normal value with the tail above, the same for the same key."""
    seed = hashlib.sha256(repr(key).encode()).digest()
    return min(median * math.exp(TAIL * random.Random(seed).gauss(0, 1)), most)


def turns_of(world: World, episode: str) -> int:
    """Tool turns of an episode."""
    return max(1, round(draw(world.turns, 100, episode, "turns")))


def turn_tokens(world: World, episode: str, turn: int) -> int:
    """Simulated tokens that the policy writes."""
    last = turn == turns_of(world, episode)
    return round(draw(world.turn_tokens, 8192, episode, turn) / SCALE) + len(ANSWER if last else SEARCH)


def tool_text(world: World, episode: str, turn: int) -> str:
    """The tool's answer; each letter is about a token."""
    return "t" * max(1, round(draw(world.tool_tokens, 8_000, episode, turn, "text") / SCALE))


def tool_seconds(world: World, episode: str, turn: int) -> float:
    return draw(world.tool_s, 300, episode, turn, "tool")


# ----------------------------------------------------------------------------------------- pretended parts


class Session:
    """A tool that answers late."""

    def __init__(self, world: World, episode: str) -> None:
        self.world, self.episode, self.turn = world, episode, 0

    async def search(self, query: str, num: int) -> ToolResult:
        await asyncio.sleep(tool_seconds(self.world, self.episode, self.turn))
        self.turn += 1
        return ToolResult(tool_text(self.world, self.episode, self.turn - 1))

    def restore(self, calls: list[ToolCall]) -> None:
        self.turn = len(calls)


class Server:
    """An SGLang server with so many slots: turns wait for one, then prefill what is not cached, then decode."""

    def __init__(self, name: str, world: World, slots: int) -> None:
        self.url, self.world = name, world
        self.weights, self.cached = "", {}
        self.busy, self.prefilled = 0.0, 0
        self._slots = asyncio.Semaphore(slots)
        self._runs, self._mode = asyncio.Event(), ""
        self._runs.set()
        self._stops = asyncio.Event()

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            "simulated", self.weights, 10**6, seeds=False, moe=False, routes=False, updates=True
        )

    async def weight_version(self, limit_s: float = 0) -> str:
        return self.weights

    async def prompt_logprobs(self, ids, limit_s: float) -> tuple[np.ndarray, Reply]:
        return np.zeros(len(ids) - 1), Reply((0,), (0.0,), (self.weights,), "length", True, 0)

    async def abort(self, rid: str) -> None:
        pass

    async def pause(self, mode: str, limit_s: float) -> None:
        self._mode = mode
        self._runs.clear()
        self._stops.set()
        await asyncio.sleep(0)

    async def resume(self, limit_s: float = 0) -> None:
        self._stops.clear()
        self._runs.set()

    async def flush_cache(self, limit_s: float = 0) -> None:
        self.cached.clear()

    async def update_weights(self, folder: Path, weight_version: str, limit_s: float) -> None:
        await asyncio.sleep(self.world.load_s)
        self.weights = weight_version

    async def generate(self, ids, sampling, rid: str, seeded: bool, routes) -> Reply:
        """The next piece of the turn; a pause ends it ("abort") or holds it ("retract")."""
        ids = np.asarray(ids).tolist()
        session = SESSION.search(rid)[0]
        episode = session.rsplit("/", 1)[0]
        wanted = self._turn(episode, ids)
        known, made, versions = self.cached.get(session, 0), 0, []
        async with self._slots:
            while True:
                await self._runs.wait()
                context = len(ids) + made
                fresh = max(context - known, 0)
                self.prefilled += fresh
                prefill = fresh * SCALE / self.world.prefill
                needs = prefill + (len(wanted) - made) * SCALE * self.world.decode_s
                took = await self._run_for(needs)
                more = len(wanted) - made if took >= needs else self._decoded(took - prefill)
                versions += [self.weights] * more
                made += more
                if made == len(wanted) or self._mode == "abort":
                    break
                known = 0  # a server that is paused gives its memory back
        finish = "stop" if made == len(wanted) else "abort"
        self.cached[session] = len(ids) + made
        return Reply(tuple(wanted[:made]), (0.0,) * made, tuple(versions), finish, True, min(known, len(ids)))

    def _turn(self, episode: str, ids) -> list[int]:
        """What is left to write of a turn, whose begin may stand at the end of `ids`."""
        turn = (ids.count(STOP) - PROMPT.count(STOP)) // 2
        text = ANSWER if turn >= turns_of(self.world, episode) else SEARCH
        begun = ids[::-1].index(STOP) - HEADER
        return ([FILLER] * (turn_tokens(self.world, episode, turn) - len(text)) + text)[begun:]

    def _decoded(self, seconds: float) -> int:
        return max(0, int(seconds / (SCALE * self.world.decode_s)))

    async def _run_for(self, seconds: float) -> float:
        """Decode for so long, or until a pause; returns how long it was."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            async with asyncio.timeout(seconds):
                await self._stops.wait()
        except TimeoutError:
            self.busy += seconds
            return seconds
        self.busy += loop.time() - start
        return loop.time() - start


class Pool(SGLangPool):
    """The real pool around pretended servers."""

    def __init__(self, world: World, folder: Path, in_flight: str) -> None:
        super().__init__(
            (),
            folder,
            options=PoolOptions(in_flight=in_flight, request_s=NEVER, health_s=NEVER, update_s=NEVER),
        )
        each = world.slots // world.servers
        self.servers = [Server(f"server {i}", world, each) for i in range(world.servers)]

    async def __aenter__(self) -> Pool:
        self.fleet = Fleet(self.servers, self._model.vocab_size, self._options, self.counters, self._news)
        await self.fleet.open(self._weights)
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()


@dataclasses.dataclass(frozen=True)
class Toolbox:
    """Hands out the session of one episode, whose delays are its own; the scheduler asks as it begins."""

    world: World
    episode: str = ""

    def session(self, question: str) -> Session:
        return Session(self.world, self.episode)


@dataclasses.dataclass(frozen=True)
class SimulatedRollouts(Rollouts):
    """Tells each session whose it is."""

    async def episode(self, question, sample, seed, buffer=None):
        tools = Toolbox(self.tools.world, f"{question.id}/{sample}")
        return await Rollouts.episode(dataclasses.replace(self, tools=tools), question, sample, seed, buffer)


# ------------------------------------------------------------------------------------------ one simulation


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of the measured steps.  Seconds are means of a step; `busy` is the share of slot time that decoded."""

    staleness: int
    step_s: float
    bound_s: float
    busy: float
    prefilled_again: float  # tokens prefilled / new tokens
    staleness_max: int


async def simulate(world: World, staleness: int, steps: int, folder: Path, in_flight: str) -> Figures:
    """Plays `steps` steps and measures all but the first and last few, which fill and empty the pipeline."""
    questions = [Question(f"q{i}", QUESTION, "Dove") for i in range(PROMPTS * (steps + 1))]

    async def score(question, trajectories):
        seconds = (draw(world.judge_s, 300, question.id, t.sample, "judge") for t in trajectories)
        await asyncio.sleep(max(seconds))
        return [Score("ok") for _ in trajectories]

    async with Pool(world, folder, in_flight) as pool:
        budgets = Budgets(10**6, 101, 101, 10**6)
        rollouts = SimulatedRollouts(pool, CHAT, Toolbox(world), budgets)
        stream = Stream(questions.__getitem__, lambda p, i: GROUP * p + i, GROUP)
        scheduler = Scheduler(
            rollouts, stream, score, StalenessGate(PROMPTS, staleness, steps), in_flight=world.in_flight
        )
        ends, busy, prefilled, new, bounds, worst = [0.0], [0.0], [0], [0], [], 0
        for step in range(steps):
            groups = await scheduler.batch()
            assert all(t.end is End.ANSWERED for group in groups for t in group.trajectories)
            await asyncio.sleep(world.train_s)
            await pool.update_weights(folder, step + 1)
            worst = max(worst, scheduler.trained())
            ends.append(asyncio.get_running_loop().time())
            busy.append(sum(s.busy for s in pool.servers))
            prefilled.append(sum(s.prefilled for s in pool.servers))
            new.append(new[-1] + sum(len(t.ids) - t.generated_tokens for g in groups for t in g.trajectories))
            bounds.append(bound(world, groups, staleness))
    first, last = min(staleness + 1, steps - 1), steps - staleness
    seconds = ends[last] - ends[first]
    return Figures(
        staleness,
        seconds / (last - first),
        float(np.mean(bounds[first:last])),
        (busy[last] - busy[first]) / (world.slots * seconds),
        prefilled[-1] / new[-1],
        worst,
    )


def bound(world: World, groups, staleness: int) -> float:
    """Seconds that a step needs under any schedule.

    Its decoding fills the slots; and in a synchronous step, training follows the longest chain of turns and
    tools, where otherwise it runs beside.
    """
    work = longest = 0.0
    for group in groups:
        chains = []
        for t in group.trajectories:
            episode = f"{t.question_id}/{t.sample}"
            decode = t.generated_tokens * SCALE * world.decode_s
            decode += (len(t.ids) - t.generated_tokens) * SCALE / world.prefill
            tools = sum(tool_seconds(world, episode, i) for i in range(len(t.calls)))
            work += decode
            chains.append(decode + tools)
        judge = max(draw(world.judge_s, 300, group.question.id, t.sample, "judge") for t in group.trajectories)
        longest = max(longest, max(chains) + judge)
    if staleness == 0:
        return max(work / world.slots, longest) + world.train_s + world.load_s
    return max(work / world.slots, world.train_s + world.load_s)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--staleness", default="0,1,2,4")
    p.add_argument("--slots", type=int, default=World.slots)
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--on-update", default="keep", choices=("keep", "resume"))
    p.add_argument("--json", type=Path)
    args = p.parse_args()
    levels = list(map(int, args.staleness.split(",")))
    if args.steps < (least := 2 * max(levels) + 2):
        p.error(f"to measure a staleness of {max(levels)} takes --steps={least}")
    logging.disable()
    world, rows = dataclasses.replace(World(), slots=args.slots, in_flight=3 * args.slots), []
    print("| staleness | s / step | bound | of bound | busy | speed-up | prefilled / new | oldest |")
    print("|" + " --- |" * 8)
    with tempfile.TemporaryDirectory() as folder:
        model = dataclasses.replace(PRESETS["tiny"], vocab_size=CHAT.tokenizer.vocab_size)
        (Path(folder) / "config.json").write_text(json.dumps(to_hf_config(model)))
        for staleness in levels:
            with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
                row = runner.run(simulate(world, staleness, args.steps, Path(folder), args.on_update))
            rows.append(row)
            print(line(row, rows[0]), flush=True)
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")


def line(row: Figures, first: Figures) -> str:
    parts = [
        row.staleness or "synchronous",
        f"{row.step_s:.0f}",
        f"{row.bound_s:.0f}",
        f"{row.step_s / row.bound_s:.2f}",
        f"{row.busy:.1%}",
        f"{first.step_s / row.step_s:.2f}",
        f"{row.prefilled_again:.3f}",
        row.staleness_max,
    ]
    return "| " + " | ".join(map(str, parts)) + " |"


if __name__ == "__main__":
    main()
