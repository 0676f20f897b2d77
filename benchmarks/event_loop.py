"""Many episodes on one event loop: how late a callback is that should run now.

    python benchmarks/event_loop.py [--episodes=1000] [--turns=16] [--seconds=10]

The real scheduler, episodes, search corpus and pool, over real HTTP to a server in a process of its own whose
turns arrive after exponential times with the mean that is given.  Every other turn opens a page of 10,000
characters, so that contexts grow to some 48,000 tokens.  The lag of the loop is that of a timer of 10 ms, first
while nothing else runs, then with all episodes in flight.  See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from carr_jax.agent.chat import Chat, render_turn
from carr_jax.agent.episode import Budgets
from carr_jax.agent.tokenizer import train_bpe
from carr_jax.models.config import PRESETS, to_hf_config
from carr_jax.records import End, Page, Question, Score, ToolCall
from carr_jax.rollout.fleet import PoolOptions
from carr_jax.rollout.pool import SGLangPool
from carr_jax.rollout.scheduler import Rollouts, Scheduler, Stream
from carr_jax.rollout.staleness import StalenessGate
from carr_jax.search.corpus import Corpus

TICK_S, IDLE_S = 0.01, 3.0
GROUP, CONTEXT = 8, 64_000
WORDS = "river bridge stone mason city poet harbour museum winter garden tower battle engine comet".split()


def pages(count: int = 400, characters: int = 10_000) -> list[Page]:
    """Pages of that length about nothing."""
    rng = random.Random(0)
    names = [f"{rng.choice(WORDS)} {rng.choice(WORDS)} {n}" for n in range(count)]
    texts = [" ".join(rng.choices(WORDS + names, k=characters // 7))[:characters] for _ in names]
    return [
        Page(f"https://pages.example/{n}", name, text)
        for n, (name, text) in enumerate(zip(names, texts, strict=True))
    ]


def script(chat: Chat, found: list[Page], turns: int, seconds: float) -> dict:
    """What the pretended server samples: searches and opened pages in turn, then an answer; 64 such stories."""
    rng = random.Random(1)

    def search() -> str:
        words = " ".join(rng.choices(WORDS, k=3)) + " " + rng.choice(found).title
        return render_turn(
            "I look for it. " * 20, "", [ToolCall("browser.search", {"query": words, "num": 10})]
        )

    def opened() -> str:
        return render_turn("This one. " * 20, "", [ToolCall("browser.open", {"id": rng.randrange(10)})])

    answer = render_turn("Now I know.", "## Exact Answer\nA dove.")
    stories = [[f() for _ in range(turns // 2) for f in (search, opened)] + [answer] for _ in range(64)]
    return {
        "stories": [[chat.turn_ids(text) for text in story] for story in stories],
        "seconds": seconds,
        "context": CONTEXT,
        "seed": 0,
    }


class Lag:
    """`async with Lag() as lag:` keeps how late a timer of 10 ms was, in ms, as long as the block runs."""

    async def __aenter__(self) -> Lag:
        self.late_ms: list[float] = []
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_ms.append(1000 * (loop.time() - due))

    def percentiles(self) -> dict[str, float]:
        return {f"p{p}": float(np.percentile(self.late_ms, p)) for p in (50, 99, 100)}


async def play(url: str, folder: Path, chat: Chat, corpus: Corpus, episodes: int) -> dict:
    """Runs all episodes at once; the figures of the loop."""
    async with Lag() as idle:
        await asyncio.sleep(IDLE_S)
    questions = [Question(f"q{n}", "Who built it?", "A dove") for n in range(episodes // GROUP)]

    async def score(question, trajectories):
        assert all(t.end is End.ANSWERED for t in trajectories), [t.end for t in trajectories]
        return [Score("ok") for _ in trajectories]

    async with SGLangPool((url,), folder, options=PoolOptions(request_s=1e6, health_s=5.0)) as pool:
        budgets = Budgets(CONTEXT, 100, 100, 8192)
        rollouts = Rollouts(pool, chat, corpus, budgets)
        stream = Stream(questions.__getitem__, lambda p, i: GROUP * p + i, GROUP)
        scheduler = Scheduler(rollouts, stream, score, StalenessGate(len(questions), 0, 1))
        cpu, wall = time.process_time(), time.perf_counter()
        async with Lag() as busy:
            groups = await scheduler.batch()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    trajectories = [t for g in groups for t in g.trajectories]
    turns = sum(len(t.turns) for t in trajectories)
    return {
        "idle": idle.percentiles(),
        "busy": busy.percentiles(),
        "seconds": wall,
        "turns_per_s": turns / wall,
        "cpu_ms_per_turn": 1000 * cpu / turns,
        "cpu_share": cpu / wall,
        "tokens": float(np.mean([len(t.ids) for t in trajectories])),
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--episodes", type=int, default=1000)
    p.add_argument("--turns", type=int, default=16)
    p.add_argument("--seconds", type=float, default=10.0, help="mean of a turn")
    args = p.parse_args()
    logging.disable()
    found = pages()
    chat, corpus = Chat(train_bpe([page.text for page in found[:40]], 2048)), Corpus(found)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = dataclasses.replace(PRESETS["tiny"], vocab_size=chat.tokenizer.vocab_size)
        (folder / "config.json").write_text(json.dumps(to_hf_config(model)))
        (folder / "script.json").write_text(json.dumps(script(chat, found, args.turns, args.seconds)))
        server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("pretended_server.py"), folder / "script.json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            port = int(server.stdout.readline())
            figures = asyncio.run(
                play(f"http://127.0.0.1:{port}", folder, chat, corpus, args.episodes // GROUP * GROUP)
            )
        finally:
            server.kill()
    for name in ("idle", "busy"):
        print(f"lag, {name:4}: " + ", ".join(f"{k} {v:.1f} ms" for k, v in figures[name].items()))
    del figures["idle"], figures["busy"]
    print(", ".join(f"{k} {v:.3g}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
