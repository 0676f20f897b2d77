"""The tool server over real HTTP on loopback: what its clients see is what a session in process shows."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from carr_jax.agent.chat import Chat, render_turn
from carr_jax.agent.episode import Budgets, run_episode
from carr_jax.agent.tokenizer import train_bpe
from carr_jax.agent.tools import run_call
from carr_jax.records import UNAVAILABLE, End, Generation, Page, Question, ToolCall
from carr_jax.search.browser import NO_PAGE, Missing, Outage, Session
from carr_jax.search.client import RemoteTools
from carr_jax.search.corpus import Corpus
from carr_jax.search.server import EXPIRED, Limits, make_app
from carr_jax.search.sessions import Sessions

ROOT = Path(__file__).parents[2]
PAGES = [
    Page("https://w.example/kemi", "Kemi", "Kemi is a town in Lapland. Its mayor is Bo Lind. " * 300),
    Page("https://w.example/oulu", "Oulu", "Oulu is a town on the coast.\nIts mayor is Eva Holm."),
]
CALLS = [
    ("browser.search", {"query": "mayor of Kemi", "num": "2"}),
    ("browser.open", {"id": 0.0}),
    ("browser.find", {"pattern": "Bo Lind"}),
    ("browser.open", {"id": "https://w.example/nowhere"}),
    ("browser.find", {"pattern": "lapland"}),
    ("browser.open", {"id": 7}),
    ("browser.search", {"query": " "}),
    ("browser.search", {"query": "zzzz"}),
    ("browser.open", {"id": 0}),
    ("browser.open", {"id": "https://w.example/oulu"}),
    ("browser.find", {"pattern": 1871}),
    ("browser.click", {}),
]


def run(coroutine):
    return asyncio.run(coroutine)


class Served:
    """A server around tools, with the sessions of a file; an async context."""

    def __init__(self, file, tools=None, token="", limits=None, **options):
        self.sessions = Sessions(file, **options)
        self.server = TestServer(make_app(tools or Corpus(PAGES), self.sessions, token, limits))

    async def __aenter__(self):
        await self.server.start_server()
        self.url = str(self.server.make_url("/"))
        self.http = ClientSession()
        return self

    async def __aexit__(self, *error):
        await self.http.close()
        await self.server.close()
        self.sessions.__exit__()

    async def post(self, body, **more):
        data = body if isinstance(body, str | bytes) else json.dumps(body)
        async with self.http.post(self.url, data=data, **more) as reply:
            return reply.status, await reply.json()

    async def get(self, path):
        async with self.http.get(self.url + path) as reply:
            return reply.status, await reply.text()


def request(name="browser.search", arguments=None, session="s", info=None, **more):
    info = {"search_forbidden_strs": ["Who?"]} if info is None else info
    body = {"session_id": session, "name": name, "arguments": arguments or {}, "remote_env_info": info}
    return {**body, "tool_call_id": "c1", **more}


async def played(session, calls=CALLS):
    return [await run_call(session, name, arguments) for name, arguments in calls]


def test_results_are_those_in_process_and_survive_restarts(tmp_path):
    async def scenario():
        expected = await played(Corpus(PAGES).session())
        seen = []
        for number, call in enumerate(CALLS):  # a restart of the server before every call
            async with Served(tmp_path / "s.sqlite") as served:
                tools = RemoteTools(served.url)
                session = tools.session("Who?")
                session._id = "the-same"
                seen += await played(session, [call])
            assert seen[number] == expected[number], call
        return expected

    expected = run(scenario())
    assert {r.error for r in expected} == {None, "not_found", "bad_call"}


class Engine:
    """Says the scripted turns, one after the other."""

    def __init__(self, chat):
        turns = [render_turn("look", "", [ToolCall(n, a)]) for n, a in CALLS[:-1]]
        self.turns = [chat.tokenizer.encode_control(t) for t in [*turns, render_turn("done", "It is Bo.")]]

    async def generate(self, ids, sampling, key):
        turn = self.turns.pop(0)
        return Generation(tuple(turn), (-0.5,) * len(turn), (0,) * len(turn), "stop")

    async def release(self, key):
        pass


def test_an_episode_over_http_has_the_same_tokens(tmp_path):
    chat = Chat(train_bpe([page.text for page in PAGES], 400))
    budgets = Budgets(60_000, 20, 20, 2_000)

    async def episode(tools):
        return await run_episode(
            question := Question("q", "Who is the mayor?", "Bo Lind"),
            sample=0,
            engine=Engine(chat),
            session=tools.session(question.question),
            chat=chat,
            budgets=budgets,
            seed=0,
        )

    async def scenario():
        here = await episode(Corpus(PAGES))
        async with Served(tmp_path / "s.sqlite") as served:
            tools = RemoteTools(served.url)
            there = await episode(tools)
        return here, there

    here, there = run(scenario())
    assert here.end is End.ANSWERED and len(here.calls) == len(CALLS) - 1
    assert (here.ids == there.ids).all() and (here.mask == there.mask).all()
    assert [c.result for c in here.calls] == [c.result for c in there.calls]


def test_a_restored_client_brings_its_new_session_to_where_it_was(tmp_path):
    async def scenario():
        expected = await played(Corpus(PAGES).session(), CALLS[:3])
        async with Served(tmp_path / "s.sqlite") as served:
            tools = RemoteTools(served.url)
            session = tools.session("Who?")
            session.restore([ToolCall("tool", {}, result) for result in expected[:2]])
            assert await session.find("Bo Lind") == expected[2]
            assert (await session.open(1)).seen[0].url == "https://w.example/oulu"

    run(scenario())


def test_a_session_that_was_forgotten_is_brought_back_by_our_client_and_told_to_others(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])

    async def scenario():
        async with Served(tmp_path / "s.sqlite", seconds=60.0) as served:
            tools = RemoteTools(served.url)
            session = tools.session("Who?")
            await played(session, CALLS[:2])
            now[0] += 61
            await served.post(request("start_session", session="other", info={}))
            assert len(served.sessions) == 1  # the other one
            raw = await served.post(request("browser.find", {"pattern": "mayor"}, session=session._id))
            assert (raw[0], raw[1]["error"], raw[1]["reason"]) == (200, "unavailable", EXPIRED)
            assert raw[1]["output"] == UNAVAILABLE
            assert "[Match 1]" in (await session.find("Bo Lind")).output

    run(scenario())


def test_sessions_are_never_mixed(tmp_path):
    async def scenario():
        async with Served(tmp_path / "s.sqlite", in_memory=2) as served:
            tools = RemoteTools(served.url)
            sessions = [tools.session(f"q{i}") for i in range(20)]
            await asyncio.gather(*(s.search("mayor town", 2) for s in sessions))
            urls = [page.url for page in PAGES]
            opened = await asyncio.gather(*(s.open(urls[i % 2]) for i, s in enumerate(sessions)))
            found = await asyncio.gather(*(s.find("mayor") for s in sessions))
            for i, (page, hit) in enumerate(zip(opened, found, strict=True)):
                assert page.seen[0].url == urls[i % 2] and {s.url for s in hit.seen} == {urls[i % 2]}
            assert len(served.sessions) == 20

    run(scenario())


class Broken:
    """Tools whose source cannot be reached, or withholds; it notes the questions."""

    def __init__(self):
        self.questions = []

    def session(self, question):
        self.questions.append(question)
        return Session(self)

    async def search(self, query, num):
        raise Outage("key_refused")

    async def page(self, url):
        raise Missing("This page is withheld.", "withheld")


def test_failures_and_their_reasons_cross_the_wire(tmp_path):
    tools = Broken()

    async def scenario():
        async with Served(tmp_path / "s.sqlite", tools) as served:
            return (
                await served.post(request(arguments={"query": "x"})),
                await served.post(request("browser.open", {"id": "http://x.example/"})),
                await served.post(
                    request("browser.find", {"pattern": "x"}, info={"question": "Ours?"}, session="t")
                ),
            )

    search, opened, found = run(scenario())
    assert search == (200, {"session_id": "s", "tool_call_id": "c1", "output": UNAVAILABLE, "seen": [],
                            "error": "unavailable", "reason": "key_refused"})  # fmt: skip
    assert (opened[1]["output"], opened[1]["reason"]) == ("This page is withheld.", "withheld")
    assert found[1]["output"] == NO_PAGE
    assert tools.questions == ["Who?", "Ours?"]


BAD = [
    *({k: v for k, v in request().items() if k != key} for key in request() if key != "tool_call_id"),
    "not json",
    "[]",
    '{"session_id": NaN}',
    "[" * 100_000,
    request(session=""),
    request(session="x" * 300),
    request(session=7),
    request(name=["x"]),
    request(arguments=["x"]),
    request(remote_env_info=None),
    request(info={"search_forbidden_strs": [3]}),
    request(info={"question": 3}),
    request("restore_session", {"results": [{"output": 3}]}),
    request("restore_session", {"results": "x"}),
]


def test_bad_requests_are_400_with_a_sentence(tmp_path):
    async def scenario():
        async with Served(tmp_path / "s.sqlite", limits=Limits(body_bytes=200_000)) as served:
            for body in BAD:
                status, reply = await served.post(body)
                assert (status, reply["status"]) == (400, "error"), body
                assert reply["reason"] and "\n" not in reply["reason"]
            assert (await served.post({"name": "x"}))[1]["reason"] == (
                "the request lacks session_id, arguments, remote_env_info"
            )
            assert (await served.post(b"x" * 200_001))[0] == 413
            assert len(served.sessions) == 0
            for name in ("start_session", "close_session"):
                body = {**request(name), "remote_env_info": None}
                assert (await served.post(body))[0] == 200
            return await served.get("metrics"), await served.get("health")

    metrics, health = run(scenario())
    assert f'carr_tools_requests_total{{path="/",status="400"}} {len(BAD) + 1}' in metrics[1]
    assert "carr_tools_sessions 0" in metrics[1] and health[0] == 200


def test_no_more_sessions_than_there_is_room_for_and_a_token(tmp_path):
    async def scenario():
        async with Served(tmp_path / "s.sqlite", token="secret", most=1) as served:
            assert (await served.post(request("start_session")))[0] == 401
            bearer = {"Authorization": "Bearer secret"}
            assert (await served.post(request("start_session"), headers=bearer))[0] == 200
            status, reply = await served.post(request("start_session", session="t"), headers=bearer)
            assert status == 503 and "1 sessions are in use" in reply["reason"]
            await served.post(request("close_session"), headers=bearer)
            assert (await served.post(request("start_session", session="t"), headers=bearer))[0] == 200
            assert (await served.get("health"))[0] == 200 and (await served.get("metrics"))[0] == 401

    run(scenario())


@pytest.mark.parametrize(
    ("statuses", "error", "reason", "asked"),
    [
        ([503, 500, 200], None, "", 3),
        ([503, 503, 503, 503], "unavailable", "http_503", 3),
        ([400], "unavailable", "http_400", 1),
        ([302], "unavailable", "http_302", 1),
        (["{"], "unavailable", "bad_reply", 1),
        (['{"error": "x"}'], "unavailable", "bad_reply", 1),  # RC-16
    ],
)
def test_the_client_repeats_what_may_help(statuses, error, reason, asked, monkeypatch):
    monkeypatch.setattr("carr_jax.search.posting._PAUSE_S", 0.001)
    count = []

    async def handle(request):
        said = statuses[len(count)]
        count.append(said)
        if isinstance(said, str):
            return web.Response(text=said)
        return web.json_response(
            {"output": "x"}, status=said, headers={"Location": "/"} if said == 302 else None
        )

    async def scenario():
        app = web.Application()
        app.router.add_post("/", handle)
        async with TestServer(app) as server:
            tools = RemoteTools(str(server.make_url("/")), attempts=3)
            result = await tools.session("").search("x")
            return result

    result = run(scenario())
    assert (result.error, result.reason, len(count)) == (error, reason, asked)


def test_nobody_listens(monkeypatch):
    monkeypatch.setattr("carr_jax.search.posting._PAUSE_S", 0.001)

    async def scenario():
        tools = RemoteTools("http://127.0.0.1:9/", attempts=2)
        result = await tools.session("").search("x")
        return result

    assert run(scenario()).reason == "unreachable"


def test_the_command_serves_an_index_and_ends_when_told(tmp_path):
    pages = tmp_path / "pages.jsonl"
    pages.write_text(
        "".join(json.dumps({"url": p.url, "title": p.title, "text": p.text}) + "\n" for p in PAGES)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    index = [sys.executable, "launch/build_index.py", str(pages), f"--out={tmp_path / 'index'}"]
    assert "2 pages" in subprocess.run(index, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    command = [
        sys.executable,
        "launch/serve_tools.py",
        "--config=configs/c_grpo_tiny.py",
        f"--config.search.index.path={tmp_path / 'index'}",
        f"--workdir={tmp_path / 'work'}",
        "--port=0",
    ]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[1]

        async def ask():
            tools = RemoteTools(url)
            result = await tools.session("Who?").search("mayor of Oulu", 1)
            return result

        result = run(ask())
        process.send_signal(signal.SIGTERM)
        assert "closed" in process.stdout.read()
    assert process.returncode == 0 and result.seen[0].url == "https://w.example/oulu"
