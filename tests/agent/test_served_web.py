"""The tool server over the web, as a process of its own: episodes through it, and its sudden end."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import aiohttp
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parents[1] / "search"))

from test_episode import ANSWER, FORGED, OPEN, QUESTION, ROOMY, SEARCH, Engine, look
from webstub import WebStub

from carr_jax.agent.chat import Chat
from carr_jax.agent.tools import run_call
from carr_jax.judging import chosen_config
from carr_jax.rollout.scheduler import Rollouts, run_groups
from carr_jax.search.client import RemoteTools
from carr_jax.task import ready, served_tools

CALLS = [
    ("browser.search", {"query": "who built {n}", "num": 3}),
    ("browser.open", {"id": 1}),
    ("browser.find", {"pattern": "kemi"}),
    ("browser.open", {"id": "https://other{n}.test/b"}),
    ("browser.find", {"pattern": "bridge"}),
    ("browser.search", {"query": "and where {n}", "num": 2}),
    ("browser.open", {"id": 0}),
]


def options(stub):
    return [
        "--config=configs/c_grpo_tiny.py",
        "--config.search.source=web",
        f"--config.search.web.search_url={stub.url}/search",
        f"--config.search.web.reader_url={stub.url}/reader/",
        "--config.search.web.search_keys=STUB_KEY",
        "--config.search.web.reader_keys=STUB_KEY",
        "--config.search.web.search_usd=1.0",
    ]


@contextlib.asynccontextmanager
async def serving(stub, folder, *more, port=0):
    """`launch/serve_tools.py` over the stub: the process and its address; killed in the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "launch/serve_tools.py", *options(stub), *more),
        *(f"--workdir={folder}", f"--port={port}"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said = (await process.stdout.readline()).decode()
        assert said.startswith("ready: "), (await process.stderr.read()).decode()
        yield process, said.split()[1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def in_process(stub, folder):
    tools = served_tools(chosen_config(["serve_tools.py", *options(stub)]))
    async with ready(tools, folder):
        yield tools


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario(), 120))


async def episode(chat, tools):
    engine = Engine(chat, [SEARCH, OPEN, look("browser.find"), look("browser.open"), ANSWER])

    async def score(question, trajectories):
        return [None]

    (scored,) = await run_groups(Rollouts(engine, chat, tools, ROOMY), [QUESTION], 1, (0,), score)
    return scored.trajectories[0]


@pytest.fixture(autouse=True)
def a_key(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("STUB_KEY", "good")


def test_an_episode_through_the_server_is_the_one_in_process_and_a_spent_budget_is_said(tiny, tmp_path):
    chat = Chat(tiny)

    async def scenario():
        async with WebStub() as stub:
            page = f"Title: {FORGED[:9]}\n\nMarkdown Content:\n{FORGED * 3} z"
            stub.pages["https://site0.test/a"] = (200, page)
            async with in_process(stub, tmp_path / "here") as tools:
                here = await episode(chat, tools)
            budget = "--config.search.web.budget_usd=1.0"
            async with serving(stub, tmp_path / "there", budget) as (process, url):
                there = await episode(chat, RemoteTools(url))
                late = await RemoteTools(url, attempts=1).session("").search("dearer than what is left", 3)
                async with aiohttp.ClientSession() as http, http.get(f"{url}metrics") as reply:
                    metrics = (await reply.text()).splitlines()
                async with asyncio.timeout(30):
                    process.send_signal(signal.SIGTERM)
                    said, _ = await process.communicate()
        return here, there, late, metrics, said

    here, there, late, metrics, said = run(scenario)
    assert [c.result.error for c in here.calls] == [None] * 4
    assert np.array_equal(here.ids, there.ids) and here.turns == there.turns
    assert (late.error, late.reason) == ("unavailable", "http_503") and b"closed" in said
    assert {"carr_tools_web_asked 3", "carr_tools_web_cached 1", "carr_tools_web_cost_usd 1"} <= set(metrics)


async def played(session, n, calls):
    arguments = [
        {k: v.format(n=n) if isinstance(v, str) else v for k, v in given.items()} for _, given in calls
    ]
    return [await run_call(session, name, given) for (name, _), given in zip(calls, arguments, strict=True)]


def test_a_killed_server_finds_its_sessions_again(tmp_path):
    """SIGKILL while calls are in the air: what was answered holds, the rest is asked again by the client."""

    async def scenario():
        async with WebStub() as stub:
            async with in_process(stub, tmp_path / "here") as tools:
                expected = [await played(tools.session("Who?"), n, CALLS) for n in range(8)]
            async with serving(stub, tmp_path / "there") as (process, url):
                sessions = [RemoteTools(url, attempts=8).session("Who?") for _ in range(8)]
                done = [await played(s, n, CALLS[:n]) for n, s in enumerate(sessions)]  # none, 1, ... 7 calls
                stub.pause_s = 0.3
                rest = [
                    asyncio.create_task(played(session, n, CALLS[n:])) for n, session in enumerate(sessions)
                ]
                await asyncio.sleep(0.15)
                process.send_signal(signal.SIGKILL)
                await process.wait()
                port = int(url.rstrip("/").rpartition(":")[2])
                async with serving(stub, tmp_path / "there", port=port):
                    done = [a + b for a, b in zip(done, await asyncio.gather(*rest), strict=True)]
        return expected, done

    expected, done = run(scenario)
    assert done == expected and all(result.error is None for results in done for result in results)


def test_what_a_server_of_the_web_lacks_is_one_line(tmp_path):
    async def scenario():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "launch/serve_tools.py", "--config=configs/c_grpo_tiny.py"),
            *("--config.search.source=web", "--config.search.web.search_keys=NOT_SET_A,NOT_SET_B"),
            *(f"--workdir={tmp_path}", "--config.search.web.reader_keys="),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0].decode(), process.returncode

    said, code = run(scenario)
    assert code == 2 and said.count("\n") == 1
    assert all(
        f"search_keys: the environment variable {name} is not set" in said
        for name in ("NOT_SET_A", "NOT_SET_B")
    )
