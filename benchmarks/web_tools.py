"""A thousand sessions on the web at once: throughput, order and memory of the tools.

    python benchmarks/web_tools.py [--sessions=1000] [--calls=20000] [--latency=1.0] [--faults=0.05]

The real sessions, cache, lanes and account book over real HTTP to a stand-in for a search API and a reader,
in a process of its own, which answers after `latency` seconds and fails a share of the calls.  No two calls
are the same, so nothing is cached.  The ideal is that all sessions always wait for an answer, or for the pause
after a fault, and for nothing else; it meets the same faults, the late ones included.  Prints the figures
beside their bars and exits with 1 when one is missed.  See README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from aiohttp import web

from carr_jax.calls.patience import Patience
from carr_jax.search.service import Address
from carr_jax.search.web import WebOptions, WebTools

THROUGHPUT, GROWTH_MIB = 0.9, 64
_BACKOFF_S = 0.1
_SEED = 0  # of the faults


def stand_in(latency: float, faults: float) -> None:
    """Serves until it is killed; the first line that it prints is its port."""
    draw = random.Random(_SEED).random

    async def search(request: web.Request) -> web.Response:
        asked = await request.json()
        await asyncio.sleep(latency)
        if draw() < faults:
            return web.Response(status=500)
        rows = [
            {"title": asked["q"], "link": f"https://{asked['q']}.test/{n}", "snippet": "s"} for n in range(10)
        ]
        return web.json_response({"organic": rows})

    async def read(request: web.Request) -> web.Response:
        await asyncio.sleep(latency)
        if draw() < faults:
            return web.Response(status=500)
        url = request.match_info["url"]
        return web.Response(text=f"Title: {url}\n\nURL Source: {url}\n\nMarkdown Content:\n{'word ' * 400}")

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/search", search)
        app.router.add_get("/reader/{url:.*}", read)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        print(site._server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


def memory_mib() -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def ideal_seconds(sessions: int, calls: int, latency: float, faults: float) -> float:
    """What a client that costs no time takes: each session asks its next call as soon as it has an answer.

    Calls meet the faults that the stand-in draws, in the order in which they are answered.
    """
    fails, draw = random.Random(_SEED).random, random.Random(_SEED + 1).random
    answers, end = [(latency, n, 0) for n in range(sessions)], 0.0  # when, an order for ties, failures before
    left, order = calls - sessions, itertools.count(sessions)
    while answers:
        at, _, failures = heapq.heappop(answers)
        if fails() < faults:
            pause = draw() * _BACKOFF_S * 2**failures
            heapq.heappush(answers, (at + pause + latency, next(order), failures + 1))
            continue
        end = at
        if left > 0:
            heapq.heappush(answers, (at + latency, next(order), 0))
            left -= 1
    return end


async def play(url: str, folder: Path, sessions: int, calls: int, latency: float, faults: float) -> dict:
    """`calls` calls by `sessions` sessions, a search and a page in turn; the figures."""
    patience = Patience(concurrency=sessions, attempts=8, backoff_s=_BACKOFF_S, outage_s=60.0)
    options = WebOptions(
        "serper", Address(f"{url}/search", ()), Address(f"{url}/reader/", ()), patience, patience
    )
    left, mixed, failed, marks = iter(range(calls)), 0, 0, []

    async def one(number: int) -> None:
        nonlocal mixed, failed
        session, opens = tools.session("Which bridge was built by whom, and when?"), False
        for n in left:
            if n and n % (calls // 10) == 0:
                marks.append(memory_mib())
            if not opens:
                tag = f"s{number}n{n}"
                result = await session.search(tag, 10)
            else:
                result = await session.open(number % 10)
            failed += result.error is not None
            mixed += result.error is None and any(tag not in s.url for s in result.seen)
            opens = not opens and result.error is None

    async with WebTools(options, {}).opened(folder) as tools:
        wall, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for number in range(sessions):
                group.create_task(one(number))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ideal = ideal_seconds(sessions, calls, latency, faults)
    return {
        "seconds": wall,
        "calls_per_s": calls / wall,
        "share_of_ideal": ideal / wall,
        "cpu_ms_per_call": 1000 * cpu / calls,
        "failed": failed,
        "mixed_up": mixed,
        "growth_mib": max(marks[3:], default=0.0) - marks[2],  # once all connections are there
    }


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sessions", type=int, default=1000)
    p.add_argument("--calls", type=int, default=20_000)
    p.add_argument("--latency", type=float, default=1.0, help="seconds")
    p.add_argument("--faults", type=float, default=0.05, help="share of calls that fail")
    p.add_argument("--stand-in", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.stand_in:
        stand_in(args.latency, args.faults)
    command = [sys.executable, __file__, "--stand-in", f"--latency={args.latency}", f"--faults={args.faults}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        with tempfile.TemporaryDirectory() as name:
            figures = asyncio.run(play(url, Path(name), args.sessions, args.calls, args.latency, args.faults))
    finally:
        server.kill()
    print(json.dumps({k: round(v, 3) for k, v in figures.items()}))
    met = {
        f"at least {THROUGHPUT:.0%} of the ideal throughput": figures["share_of_ideal"] >= THROUGHPUT,
        "no session mixed up": figures["mixed_up"] == 0,
        "no call failed": figures["failed"] == 0,
        f"memory grows by less than {GROWTH_MIB} MiB": figures["growth_mib"] < GROWTH_MIB,
    }
    for bar, holds in met.items():
        print(f"{'met' if holds else 'MISSED'}: {bar}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
