"""The reward server over real HTTP on loopback, with scripted judges."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from scripted_judge import run
from test_carr import ALL, SETS

from carr_jax.records import InputError, Verdict
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rewards.server import Limits, make_app
from carr_jax.serving import DESK, check_exposure

ROOT = Path(__file__).parents[2]
A = "https://a.com/1"
RUBRICS = [f"fact {i} about {' and '.join(f'<E{e}>' for e in sorted(ids))}." for i, ids in enumerate(SETS)]


class Judge:
    """Says what it was told; `gate` holds it up, a value that is an exception is raised."""

    def __init__(self, outcome=True, names=None, flags=None, gate=None):
        self.values = {"outcome": outcome, "identify": names, "support": flags}
        self.gate, self.calls = gate, []

    async def _say(self, step, select=lambda value: value):
        self.calls.append(step)
        if self.gate:
            await self.gate.wait()
        value = self.values[step]
        if isinstance(value, Exception):
            raise value
        return Verdict(step, "ok", select(value), tokens=10, cost_usd=0.25)

    async def outcome(self, question, response):
        assert question.question == "Who?"
        return await self._say("outcome")

    async def identify(self, question, response):
        return await self._say("identify")

    async def support(self, question, names, indices, pages):
        return await self._say("support", lambda flags: [i in flags for i in indices])


def request(response=f"X [[1]({A})].", ratio=0.5, rubrics=RUBRICS, **fields):
    call = {"session_id": "s", "tool_call_id": "c", "name": "browser.open", "arguments": json.dumps({"id": A})}
    page = f"Title: T\n\nURL Source: {A}\n\nMarkdown Content:\nX."
    history = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "reasoning_content": "t", "tool_calls": [call]},
        {"role": "tool", "content": [{"session_id": "s", "tool_call_id": "c", "output": page}]},
        {"role": "assistant", "reasoning_content": "t", "content": response},
    ]
    environment = {"search_forbidden_strs": ["Who?"], "rubrics": rubrics, "rubric_reward_ratio": ratio}
    body = {"history": history, "label": "X", "task_unfinished": False, "remote_env_info": environment}
    return body | fields


def batch(*samples, **fields):
    body = request()
    rows = [{"history": request(text)["history"], "task_unfinished": end} for text, end in samples]
    return {"samples": rows, "label": "X", "remote_env_info": body["remote_env_info"], **fields}


def served(judge, talk, **options):
    """What `talk(post, get, app)` returns with a server around the judge."""

    async def main():
        app = make_app(judge, **options)
        async with TestServer(app) as server, ClientSession(str(server.make_url("/"))) as http:

            async def post(path, body, **more):
                data = body if isinstance(body, str | bytes) else json.dumps(body)
                async with http.post(path, data=data, **more) as reply:
                    return reply.status, await reply.json(), reply.headers

            async def get(path, **more):
                async with http.get(path, **more) as reply:
                    return reply.status, await reply.text()

            return await talk(post, get, app)

    return run(main())


def evaluated(judge, body, path="/evaluate", **options):
    return served(judge, lambda post, get, app: post(path, body), **options)


@pytest.mark.parametrize("citations", ["tolerant", "strict_reference"])
@pytest.mark.parametrize(
    ("named", "true", "identified", "connected", "rubric", "reward"),
    [
        ({0, 1, 3}, ALL - {9}, {0, 2, 3, 4, 7, 8, 9}, {0, 2, 3, 4, 7, 8}, 0.6, 0.8),
        ({0, 1, 2, 3}, ALL, ALL, ALL, 1.0, 1.0),
        ({0, 1, 2, 3}, {6, 7}, ALL, set(), 0.0, 0.5),
        ({1, 2, 3}, ALL, {6, 7}, set(), 0.0, 0.5),
        ({0, 2, 3}, ALL, {0, 8, 9}, {0, 8, 9}, 0.3, 0.65),
    ],
)
def test_scoring_vectors_of_the_reference_fixture(
    named, true, identified, connected, rubric, reward, citations
):
    names = {f"E{i}": f"name {i}" if i in named else None for i in range(4)}
    status, reply, _ = evaluated(Judge(True, names, true), request(), citations=citations)
    table = reply["rubric_scores"]
    assert (status, reply["status"], reply["outcome_reward"]) == (200, "ok", 1.0)
    assert reply["rubric_reward"] == pytest.approx(rubric)
    assert reply["reward"] == pytest.approx(reward)
    assert {int(i) for i, row in table.items() if row["all_entity_identified"]} == identified
    assert {int(i) for i, row in table.items() if row["connected_to_answer"]} == connected
    assert all(row["score"] == int(int(i) in connected) for i, row in table.items())
    assert table["7"]["raw_rubric"] == "fact 7 about <E1>."
    assert table["7"]["filled_rubric"] == ("fact 7 about name 1." if 1 in named else None)
    assert table["8"]["entity_values"] == {"E0": names["E0"], "E3": names["E3"]}


ALL_NAMED = {f"E{i}": "n" for i in range(4)}


@pytest.mark.parametrize(
    ("ratio", "outcome", "calls", "reward"),
    [
        (0.0, True, ["outcome"], 1.0),
        (None, False, ["outcome"], 0.0),
        (1.0, False, ["identify", "support"], 1.0),
        (0.3, False, ["outcome", "identify", "support"], 0.3),
    ],
)
def test_a_part_without_weight_is_not_judged(ratio, outcome, calls, reward):
    judge = Judge(outcome, ALL_NAMED, ALL)
    _, reply, _ = evaluated(judge, request(ratio=ratio))
    assert (sorted(judge.calls), reply["reward"]) == (sorted(calls), pytest.approx(reward))
    assert reply["usage"] == {
        "calls": len(calls),
        "cached": 0,
        "skipped": 0,
        "tokens": 10 * len(calls),
        "cost_usd": 0.25 * len(calls),
    }


@pytest.mark.parametrize(
    "body",
    [request(task_unfinished=True), request(response=""), request(history=request()["history"][:-1])],
    ids=["unfinished", "empty", "no answer"],
)
def test_what_is_unfinished_has_zeros_without_a_call(body):
    judge = Judge()
    status, reply, _ = evaluated(judge, body)
    assert (status, reply["status"], judge.calls, reply["rubric_scores"]) == (200, "ok", [], {})
    assert [reply[k] for k in ("reward", "outcome_reward", "rubric_reward")] == [0.0, 0.0, 0.0]
    assert reply["reason"]


def test_only_the_last_message_is_judged():
    said = []

    class Listener(Judge):
        async def outcome(self, question, response):
            said.append(response)
            return Verdict("outcome", "ok", False)

    body = request("Final.\n## References\n[1] hidden\n")
    body["history"].insert(1, {"role": "assistant", "content": "Earlier."})
    evaluated(Listener(), body | {"remote_env_info": {"search_forbidden_strs": ["Who?"]}})
    assert said == ["Final.\n"]


@pytest.mark.parametrize(
    ("judge", "known"),
    [
        (Judge(RuntimeError("503"), ALL_NAMED, ALL), {"outcome_reward": None, "rubric_reward": 1.0}),
        (Judge(True, RuntimeError("503"), ALL), {"outcome_reward": 1.0, "rubric_reward": None}),
        (Judge(True, ALL_NAMED, RuntimeError("503")), {"outcome_reward": 1.0, "rubric_reward": None}),
    ],
)
def test_a_failed_judge_is_no_zero(judge, known):
    status, reply, headers = evaluated(judge, request())
    assert (status, reply["status"], reply["reward"]) == (503, "unknown", None)
    assert int(headers["Retry-After"]) > 0 and "503" in reply["reason"]
    assert {key: reply[key] for key in known} == known


def test_an_aborted_episode_is_unknown():
    body = request()
    body["history"][-1] = {"role": "assistant", "aborted_content": "x"}
    assert evaluated(Judge(), body)[0] == 503


BROKEN = [
    *({k: v for k, v in request().items() if k != key} for key in request()),
    "not json",
    "[]",
    '{"label": NaN}',
    "[" * 100_000,
    request(history="x"),
    request(history=[]),
    request(history=[3]),
    request(label=None),
    request(label=["X"]),
    request(ratio=1.5),
    request(ratio="half"),
    request(ratio=True),
    request(rubrics="r"),
    request(rubrics=[3]),
    request(remote_env_info=[]),
    request(remote_env_info={"search_forbidden_strs": [3]}),
]


def test_bad_requests_are_400_with_a_reason():
    async def talk(post, get, app):
        for body in BROKEN:
            if isinstance(body, dict) and body.get("history") == []:
                continue  # nothing was said: zeros, as the question stands in remote_env_info
            status, reply, _ = await post("/evaluate", body)
            assert (status, reply["status"]) == (400, "error"), body
            assert reply["reason"] and "\n" not in reply["reason"]
        return (await post("/evaluate", request(history=[])))[1]

    assert served(Judge(), talk)["reward"] == 0.0


def test_a_missing_key_is_named():
    body = request()
    del body["label"]
    assert evaluated(Judge(), body)[1]["reason"] == "the request lacks label"


# ----------------------------------------------------------------------------------------------------- batches


def test_a_batch_is_scored_as_a_group():
    judge = Judge(True, ALL_NAMED, {0, 8})
    samples = [(f"a [[1]({A})].", False), (f"b [[1]({A})].", True), ("c", False)]
    status, reply, _ = evaluated(judge, batch(*samples), "/evaluate_batch")
    assert (status, reply["status"]) == (200, "ok")
    # R_r is 0.2, 0 (unfinished), 0 (no citation); the maximum of the group is 0.2.
    assert [s["reward"] for s in reply["samples"]] == [1.0, 0.0, pytest.approx(0.7)]
    assert [s["rubric_reward"] for s in reply["samples"]] == [0.2, None, 0.0]
    assert (judge.calls.count("outcome"), judge.calls.count("support")) == (2, 1)


def test_a_batch_without_a_right_answer_makes_no_rubric_calls():
    judge = Judge(False, ALL_NAMED, ALL)
    _, reply, _ = evaluated(judge, batch((f"a [[1]({A})].", False)), "/evaluate_batch")
    assert (judge.calls, reply["usage"]["skipped"]) == (["outcome"], 2)
    assert (
        evaluated(judge, batch(("a", False), mix="grpo"), "/evaluate_batch")[1]["samples"][0]["reward"] == 0.0
    )


def test_an_unknown_sample_of_a_batch_is_null():
    judge = Judge(True, RuntimeError("down"), ALL)
    status, reply, _ = evaluated(judge, batch((f"a [[1]({A})].", False), ("b", False)), "/evaluate_batch")
    assert (status, reply["status"]) == (200, "unknown")
    assert [(s["status"], s["reward"]) for s in reply["samples"]] == [
        ("unknown", None),
        ("ok", pytest.approx(0.7)),
    ]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"samples": []}, "samples must be a list"),
        ({"samples": [{"history": []}]}, "samples[0] lacks task_unfinished"),
        ({"mix": "carr"}, "mix 'carr' is not one of carr_paper"),
        ({"alpha": 2}, "alpha must be a number from 0 to 1"),
    ],
)
def test_bad_batches(fields, says):
    status, reply, _ = evaluated(Judge(), batch(("a", False)) | fields, "/evaluate_batch")
    assert status == 400 and says in reply["reason"]


# ---------------------------------------------------------------------------------------------------- serving


def test_limits():
    gate = asyncio.Event()

    async def talk(post, get, app):
        tasks = [asyncio.create_task(post("/evaluate", request(ratio=0.0))) for _ in range(3)]
        while app[DESK].inside < 3:
            await asyncio.sleep(0.001)
        assert len(app[DESK].counts) == 0
        refused = await post("/evaluate", request(ratio=0.0))
        assert refused[0] == 503 and "3 requests" in refused[1]["reason"] and refused[2]["Retry-After"]
        gate.set()
        assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 3
        assert (await post("/evaluate", b"x" * 10_001))[0] == 413
        return await get("/metrics")

    judge = Judge(True, gate=gate)
    status, text = served(judge, talk, limits=Limits(evaluations=1, waiting=2, body_bytes=10_000))
    assert status == 200
    values = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert values['carr_reward_requests_total{path="/evaluate",status="200"}'] == "3"
    assert values['carr_reward_requests_total{path="/evaluate",status="503"}'] == "1"
    assert values['carr_reward_trajectories_total{status="ok"}'] == "3"
    assert (values["carr_reward_judge_tokens_total"], values["carr_reward_inside"]) == ("30", "0")
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})?', key) for key in values)


def test_one_evaluation_at_a_time():
    class Counting(Judge):
        inside = most = 0

        async def outcome(self, question, response):
            self.inside += 1
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0.001)
            self.inside -= 1
            return Verdict("outcome", "ok", True)

    judge = Counting()

    async def talk(post, get, app):
        return await asyncio.gather(*(post("/evaluate", request(ratio=0.0)) for _ in range(6)))

    assert all(status == 200 for status, _, _ in served(judge, talk, limits=Limits(evaluations=2)))
    assert judge.most == 2


def test_what_takes_too_long_is_unknown():
    status, reply, _ = evaluated(Judge(gate=asyncio.Event()), request(), limits=Limits(seconds=0.05))
    assert (status, reply["status"], reply["reason"]) == (503, "unknown", "not judged within 0.05 s")


def test_closing_answers_what_is_there_and_refuses_what_comes():
    gate = asyncio.Event()

    async def talk(post, get, app):
        before = asyncio.create_task(post("/evaluate", request(ratio=0.0)))
        while not app[DESK].inside:
            await asyncio.sleep(0.001)
        assert (await get("/health"))[0] == 200
        closing = asyncio.create_task(app[DESK].close())
        await asyncio.sleep(0)
        assert (await get("/health"))[0] == 503
        status, reply, _ = await post("/evaluate", request())
        assert (status, reply["reason"]) == (503, "the server is closing")
        assert not closing.done()
        gate.set()
        await closing
        return await before

    assert served(Judge(True, gate=gate), talk)[1]["reward"] == 1.0


def test_a_token():
    async def talk(post, get, app):
        right = {"Authorization": "Bearer s3cret"}
        assert (await post("/evaluate", request(), headers={"Authorization": "Bearer other"}))[0] == 401
        assert (await get("/metrics"))[0] == 401
        assert (await get("/health"))[0] == 200
        return await post("/evaluate", request(ratio=0.0), headers=right)

    assert served(Judge(), talk, token="s3cret")[0] == 200


@pytest.mark.parametrize(
    ("host", "token", "allowed"),
    [
        ("127.0.0.1", "", True),
        ("::1", "", True),
        ("localhost", "", True),
        ("0.0.0.0", "", False),
        ("10.0.0.1", "", False),
        ("localhost.evil.example", "", False),
        ("0.0.0.0", "s3cret", True),
    ],
)
def test_only_this_machine_may_ask_without_a_token(host, token, allowed):
    if allowed:
        check_exposure(host, token, "CARR_REWARD_TOKEN")
    else:
        with pytest.raises(InputError, match="CARR_REWARD_TOKEN"):
            check_exposure(host, token, "CARR_REWARD_TOKEN")


def launched(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "CARR_REWARD_TOKEN"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "launch/serve_rewards.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_the_command_serves_until_it_is_told():
    with launched("--port=0") as process:
        address = re.search(r"http://\S+", process.stdout.readline())[0]

        async def ask():
            question = {"search_forbidden_strs": ["Who?"]}
            body = request("## Exact Answer\nX") | {"remote_env_info": question}
            async with ClientSession() as http, http.post(address, json=body) as reply:
                return await reply.json()

        assert run(ask())["reward"] == 1.0
        process.send_signal(signal.SIGTERM)
        assert "closed" in process.communicate(timeout=20)[0]
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--host=0.0.0.0", "CARR_REWARD_TOKEN"),
        ("--config=configs/nobody.py", "no such file"),
        ("--citations=loose", "tolerant, strict_reference"),
        ("--port=99999", "between 0 and 65535"),
        ("--seconds=0", "positive"),
    ],
)
def test_the_command_refuses(option, says):
    with launched(option) as process:
        text, _ = process.communicate(timeout=20)
    assert process.returncode == 2 and says in text and text.count("\n") == 1


def test_the_exact_judge_needs_entity_names():
    body = request("## Exact Answer\nX", rubrics=["<E1> was born in <E0>."])
    status, reply, _ = evaluated(ExactJudge(), body)
    assert (status, reply["reward"]) == (200, 0.5)  # no page was cited, so nothing was asked
    cited = request(f"Ann: X [1]({A}).\n## Exact Answer\nX", rubrics=["<E1> was born in <E0>."])
    assert evaluated(ExactJudge(), cited)[0] == 503
    cited["remote_env_info"]["entities"] = {"E0": ["X"], "E1": ["Ann"]}
    assert evaluated(ExactJudge(), cited)[1]["rubric_reward"] == 0.0  # the page does not say so
