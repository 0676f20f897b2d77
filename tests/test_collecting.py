"""Collecting traces: what is kept and why not, the same at the end after any kill, frozen, within a budget."""

import asyncio
import dataclasses
import gzip
import json
import os
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "search")]
from school import ANNA, ANSWER, CHAT, LYME, PAGES, Teacher, lesson, question, rollouts
from stub import Stub
from webstub import WebStub

from carr_jax import config as defaults
from carr_jax.calls.errors import BudgetSpent
from carr_jax.collecting import TeacherStopped, by_expert, by_rewards, collect
from carr_jax.data.frozen import manifest_of
from carr_jax.data.sources import read_questions
from carr_jax.judging import chosen_config
from carr_jax.records import End, InputError, Score
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rewards.rejection import Bar
from carr_jax.scoring import read_items
from carr_jax.stored import to_json
from carr_jax.teaching import Options, Prices, run_collection
from carr_jax.traces import read_attempts, read_traces, rejects_of, traces_of

ROOT = Path(__file__).parents[1]
WORDS = ("well", "wrong", "guess", "malformed", "control", "endless", "well")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with questions, pages and a tokenizer, and the configuration of a small town."""
    monkeypatch.setenv("TEACHER_KEY", "k")
    CHAT.tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "data").mkdir()
    asked = [question(f"q{i}", word) for i, word in enumerate(WORDS)]
    write(tmp_path / "data" / "questions.jsonl", map(to_json, asked))
    write(tmp_path / "data" / "corpus.jsonl", map(to_json, PAGES))
    config = defaults.rl()
    config.data.source, config.data.path = "files", str(tmp_path / "data")
    config.model.tokenizer = str(tmp_path / "tokenizer")
    config.agent.context, config.agent.turns, config.agent.turn_tokens = 20_000, 6, 4_000
    config.rollout.in_flight = 3
    return tmp_path, config


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def options(folder, stub, **more):
    teacher = f"{stub.url} TEACHER_KEY stub" if stub else more.pop("teacher")
    return Options(folder / "data" / "questions.jsonl", folder / "traces", teacher, **more)


def taught(place, mind=lesson, script=(), **more):
    """(statistics, what the endpoint was asked) of a collection with the stub as the teacher."""
    folder, config = place

    async def run():
        async with Teacher(mind) as stub:
            stub.script = list(script)
            given = options(folder, stub, **more)
            try:
                facts = await run_collection(given, config, "the command")
            finally:
                calls.extend(stub.calls)
            return facts

    calls: list = []
    return asyncio.run(run()), calls


def rows_in(folder):
    return [json.loads(line) for line in gzip.decompress(traces_of(folder).read_bytes()).splitlines()]


def frozen(folder):
    return [path(folder / "traces").read_bytes() for path in (traces_of, rejects_of)]


# ------------------------------------------------------------------------------------------- what is kept


def test_what_is_kept_and_why_not(place):
    """By hand: two good ones; a wrong one, a guess without pages, two messages that are none, one endless."""
    facts, _ = taught(place)
    folder = place[0] / "traces"
    rows = rows_in(folder)
    assert [row["question"]["id"] for row in rows] == ["q0", "q6"]
    rejects = [json.loads(line) for line in rejects_of(folder).read_text().splitlines()]
    assert [r["question_id"] for r in rejects] == ["q1", "q2", "q3", "q4", "q5"]
    assert [r["reasons"][0].partition(":")[0] for r in rejects] == [
        "outcome too low",
        "rubric reward too low",
        "a tool call is not valid JSON",
        "it holds the control token <|im_end|>",
        "turn budget",
    ]
    assert (facts["attempts"], facts["kept traces"], facts["questions with a trace"]) == (7, 2, 2)
    manifest = json.loads(manifest_of(traces_of(folder)).read_text())
    assert manifest["tokenizer_sha256"] == CHAT.tokenizer.content_hash()
    assert (manifest["attempts"], manifest["counts"]["attempts"]) == (1, 7)
    card = (folder / "traces.jsonl.gz.card.md").read_text()
    assert "the command" in card and "| kept traces | 2 |" in card and "rejected: turn budget | 1" in card
    assert "TEACHER_KEY" not in (folder / "attempts.jsonl").read_text()


def test_on_the_web_the_same_is_kept_and_what_was_asked_is_remembered(place, monkeypatch):
    """The town's pages behind a search service and a reader: tools with connections, a cache and a bill."""
    monkeypatch.setenv("WEB_KEY", "good")
    web = place[1].search.web
    web.provider, web.reader, web.search_keys, web.reader_keys = "serper", "jina", "WEB_KEY", "WEB_KEY"

    async def run():
        async with WebStub() as service, Teacher() as teacher:
            service.results = [{"title": p.title, "link": p.url, "snippet": p.text} for p in PAGES]
            form = "Title: {}\n\nURL Source: {}\n\nMarkdown Content:\n{}"
            service.pages = {p.url: (200, form.format(p.title, p.url, p.text)) for p in PAGES}
            place[1].search.source = "web"
            web.search_url, web.reader_url = f"{service.url}/search", f"{service.url}/reader"
            facts = await run_collection(options(place[0], teacher), place[1], "the command")
            return facts, service.calls

    facts, calls = asyncio.run(run())
    kept = rows_in(place[0] / "traces")
    assert facts["kept traces"] == 2 and [row["question"]["id"] for row in kept] == ["q0", "q6"]
    assert sorted(call[0] for call in calls) == ["reader", "reader", "search", "search"]  # for seven attempts


def test_a_trace_is_read_with_its_tokens_and_by_the_scorer(place):
    taught(place)
    folder = place[0] / "traces"
    (first, second) = read_traces(folder, CHAT.tokenizer.content_hash())
    assert first.end is End.ANSWERED and first.response == ANSWER
    assert first.mask.sum() == sum(t.end - t.start for t in first.turns)
    items = list(read_items(traces_of(folder), "m"))
    assert [item.question.id for item in items] == ["q0", "q6"]
    with pytest.raises(InputError, match="another tokenizer"):
        list(read_traces(folder, "0" * 64))
    data = traces_of(folder).read_bytes()
    traces_of(folder).write_bytes(data[:-1] + b"x")
    with pytest.raises(InputError, match="changed since it was frozen"):
        list(read_traces(folder, CHAT.tokenizer.content_hash()))
    manifest_of(traces_of(folder)).unlink()
    with pytest.raises(InputError, match="let launch/collect_sft.py end"):
        list(read_traces(folder, CHAT.tokenizer.content_hash()))


def test_at_most_so_many_of_a_question_and_the_best(place):
    """Three attempts each: the draw decides; of the right ones the shortest is kept."""

    def mind(body):
        message = lesson(body)
        return (
            message | {"reasoning_content": "x" * (body["seed"] % 7)} if message.get("tool_calls") else message
        )

    facts, _ = taught(place, mind, attempts=3, keep=2)
    rows = rows_in(place[0] / "traces")
    assert [row["question"]["id"] for row in rows] == ["q0", "q0", "q6", "q6"]
    lengths = [len(row["trajectory"]["ids"]) for row in rows]
    tried = read_attempts(place[0] / "traces")
    assert lengths[:2] == sorted(len(tried["q0", n].trajectory.ids) for n in range(3))[:2]
    assert facts["rejected: its question has better ones"] == 2
    samples = [row["trajectory"]["sample"] for row in rows]
    assert len(set(samples[:2])) == 2


# --------------------------------------------------------------------------------------- failures and resuming


def test_what_failed_is_unknown_and_asked_again_by_the_same_command(place):
    with pytest.raises(InputError, match="1 of 7 attempts are unknown.*HTTP 400.*the same command asks again"):
        taught(place, script=["http_400"])
    assert not manifest_of(traces_of(place[0] / "traces")).exists()
    folder = place[0] / "traces"
    assert sum(a.score.known for a in read_attempts(folder).values()) == 6
    facts, calls = taught(place)
    assert facts["kept traces"] == 2
    assert len({c["messages"][0]["content"] for c in calls}) == 1, "the others were known"


def test_what_was_played_but_not_judged_is_only_judged(tmp_path):
    """A judge whose budget is spent ends the command; the trajectory is there when it goes on."""
    plays = []

    async def play(asked, number):
        plays.append(asked.id)
        return await by_expert(rollouts())(walked(asked.id), number)

    async def broke(asked, trajectory):
        raise BudgetSpent("nothing left")

    async def silent(asked, trajectory):
        return Score("unknown", reason="the judge was silent")

    def run(grade):
        return asyncio.run(collect([walked("a")], tmp_path, play, grade, attempts=1, in_flight=1))

    with pytest.raises(BudgetSpent):
        run(broke)
    assert run(silent)["a", 0].score.reason == "the judge was silent"
    attempts = run(by_rewards(ExactJudge(), Bar()))
    assert plays == ["a"] and attempts["a", 0].score.rubric == 1.0


def walked(name):
    """A question with a way for the expert."""
    steps = [("Anna", "birthplace", "<E1>", ANNA), ("<E1>", "river", "<E0>", LYME)]
    keys = ("subject", "relation", "object", "url", "query")
    walk = [dict(zip(keys, (*step, step[0]), strict=True)) for step in steps]
    return dataclasses.replace(question(name), metadata={"walk": walk})


def test_a_spent_budget_saves_and_says_how_to_go_on(place):
    prices = Prices(1.0, 1.0, 1.0)
    with pytest.raises(TeacherStopped, match="give a larger --budget-usd, and the same command goes on"):
        taught(place, budget_usd=0.0058, prices=prices)
    before = len((place[0] / "traces" / "teacher" / "ledger.jsonl").read_text().splitlines())
    facts, calls = taught(place, budget_usd=1.0, prices=prices)
    assert before > 0 and facts["kept traces"] == 2
    first, _ = taught(fresh(place))
    assert first == facts, "as if the budget had never been spent"


def fresh(place):
    """The same town with another folder of traces."""
    folder, config = place
    (folder / "traces").rename(folder / "traces_before")
    return folder, config


def test_who_is_killed_at_any_time_ends_with_the_same_files(place):
    """SIGKILL in the middle and a torn last line; then the same bytes as in one go, in this process."""
    folder, _ = place
    argv = ["launch/collect_sft.py", str(folder / "data" / "questions.jsonl"), f"--out={folder / 'traces'}"]
    changes = {"data.source": "files", "data.path": folder / "data", "model.tokenizer": folder / "tokenizer"}
    changes |= {
        "model.policy": "",
        "agent.context": 20000,
        "learn.row_length": 20000,
        "agent.turn_tokens": 4000,
    }
    argv += ["--config=configs/c_grpo_tiny.py", *(f"--config.{k}={v}" for k, v in changes.items())]
    argv += ["--config.rollout.in_flight=1"]
    journal = folder / "traces" / "attempts.jsonl"

    async def run_twice():
        async with Teacher() as stub:
            stub.pause_s = 0.05
            command = [sys.executable, *argv, f"--teacher={stub.url} TEACHER_KEY stub"]
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment())
            while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
                assert process.returncode is None
                await asyncio.sleep(0.01)
            process.kill()
            await process.wait()
            with journal.open("ab") as file:
                file.write(b'{"trajectory": {"question_id"')
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment())
            assert await process.wait() == 0

    asyncio.run(run_twice())
    killed = frozen(folder)
    assert len(rows_in(folder / "traces")) == 2
    taught((fresh(place)[0], chosen_config([argv[0], *argv[3:]])))
    assert frozen(folder) == killed


def environment():
    return {**os.environ, "JAX_PLATFORMS": "cpu"}


def test_another_collection_is_not_mixed_in(place):
    taught(place)
    before = frozen(place[0])
    with pytest.raises(InputError, match="other traces \\(other min_rubric\\); give another --out"):
        taught(place, bar=Bar(1.0, 0.5))
    facts, calls = taught(place)
    assert frozen(place[0]) == before and not calls, "the same command finds all done"


# --------------------------------------------------------------------------------------- without gold answers


def believer(body):
    """An LLM judge who reads names in the response and believes every page; its prompts have no gold answer."""
    user = body["messages"][1]["content"]
    blocks = dict(re.findall(r"\[\[begin (\w+) \w{12}\]\]\n(.*?)\n\[\[end", user, re.DOTALL))
    said = {"code": re.search(r'its "code" is "(\w+)"', user)[1]}
    if "STATEMENTS" in blocks:
        said |= {"E0": "Dove", "E1": "Lymé"} if "Lymé" in blocks["RESPONSE"] else {"E0": "Dove", "E1": None}
    else:
        proof = {"pages": ["P1"], "quote": "", "supported": True}
        said |= {name: proof for name in blocks if re.fullmatch(r"S\d+", name)}
    return json.dumps(said)


def test_rubrics_alone_decide_where_nobody_knows_the_answer(place):
    """One has a gold answer that is put away, two have none; a guess that cites nothing is not kept."""
    folder, config = place
    nameless = [
        dataclasses.replace(question(f"u{i}", w), answer="", entities={}) for i, w in enumerate(WORDS[:3:2])
    ]
    gold = dataclasses.replace(question("gold"), answer="The Gold River", entities={})
    write(folder / "data" / "questions.jsonl", map(to_json, [gold, *nameless]))

    async def run():
        async with Teacher() as stub, Stub(believer) as judge:
            config.judge.kind, config.judge.model, config.judge.endpoints = "llm", "j", (judge.url,)
            given = options(folder, stub, bar=Bar(0.0, 1.0), answers=False)
            return await run_collection(given, config, "c"), judge.calls

    facts, asked = asyncio.run(run())
    rows = rows_in(folder / "traces")
    assert [row["question"]["id"] for row in rows] == ["gold", "u0"]
    assert "mean outcome" not in facts and facts["mean rubric reward"] == pytest.approx(2 / 3)
    assert 0 < len(asked) <= 4 and "Gold River" not in json.dumps(asked), (
        "two calls for each that cites at most"
    )


@pytest.mark.parametrize(
    ("change", "more", "says"),
    [
        ({}, {"teacher": "nobody"}, "--teacher must be expert, engine, history"),
        (
            {},
            {"teacher": "http://127.0.0.1:9/v1 NO_SUCH_KEY m"},
            "the environment variable NO_SUCH_KEY is not set",
        ),
        ({}, {"teacher": "expert", "attempts": 2}, "every attempt of expert is the same"),
        ({}, {"teacher": "engine"}, "--teacher=engine needs config.model.policy"),
        ({}, {"teacher": "expert", "bar": Bar(2.0, 0.0)}, "--min-outcome=2.0 must lie between 0 and 1"),
        ({}, {"teacher": "expert", "budget_usd": 1.0}, "--budget-usd needs --prices"),
        ({}, {"teacher": "expert", "answers": False}, "--without-answers needs --min-outcome=0"),
        ({}, {"teacher": "expert", "answers": False, "bar": Bar(0.0, 1.0)}, "needs config.judge.kind=llm"),
        ({"model.tokenizer": ""}, {"teacher": "expert"}, "give config.model.policy or config.model.tokenizer"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_asked(place, change, more, says):
    folder, config = place
    config.update_from_flattened_dict(change)
    with pytest.raises(InputError) as caught:
        asyncio.run(run_collection(options(folder, None, **more), config, "c"))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["q.jsonl", "--out=o"], "the following arguments are required: --teacher"),
        (["q.jsonl", "--out=o", "--teacher=expert", "--prices=1,2"], "--prices=1,2 must be three numbers"),
        (["q.jsonl", "--out=o", "--teacher=expert", "--atempts=2"], "unrecognized arguments: --atempts=2"),
        (["q.jsonl", "--out=o", "--teacher=expert", "--config=configs/sft_tiny.py"], "has no section judge"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(arguments, says, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    script = runpy.run_path(str(ROOT / "launch" / "collect_sft.py"))
    assert script["main"](["launch/collect_sft.py", *arguments]) == 2
    said = capsys.readouterr().out
    assert says in said and said.count("\n") == 1


def test_questions_without_an_answer_are_for_this_command_alone(place):
    folder, _ = place
    write(folder / "data" / "questions.jsonl", [to_json(dataclasses.replace(question("u"), answer=""))])
    with pytest.raises(InputError, match="has no answer; only launch/collect_sft.py --without-answers"):
        read_questions(folder / "data")
    assert [q.answer for q in read_questions(folder / "data", answers=False)] == [""]


def test_conversations_become_traces(place):
    """A history of the public code, played again: no question of its rubrics, so the outcome alone decides."""
    folder, config = place
    facts, _ = taught(place)
    (good, _) = read_traces(folder / "traces", CHAT.tokenizer.content_hash())
    calls = [
        {"tool_call_id": f"{i}", "name": call.name, "arguments": json.dumps(call.arguments)}
        for i, call in enumerate(good.calls)
    ]
    history = [{"role": "user", "content": question("h").question}]
    number = 0
    for turn in good.turns:
        message = {"role": "assistant", "reasoning_content": turn.thought, "content": turn.content}
        mine = calls[number : number + len(turn.calls)]
        number += len(turn.calls)
        history.append({**message, "tool_calls": mine} if mine else message)
        if mine:
            entries = [
                {"tool_call_id": c["tool_call_id"], "output": call.result.output}
                for c, call in zip(mine, turn.calls, strict=True)
            ]
            history.append({"role": "tool", "content": entries})
    row = {"id": "q0", "question": question("h").question, "answer": "Dove", "history": history}
    write(folder / "data" / "questions.jsonl", [row])
    given = options(folder, None, teacher="history", bar=Bar(1.0, 0.0))
    asyncio.run(run_collection(dataclasses.replace(given, out=folder / "again"), config, "c"))
    (again,) = read_traces(folder / "again", CHAT.tokenizer.content_hash())
    assert np.array_equal(
        again.ids, CHAT.prompt_ids(question("h").question) + good.ids[good.prompt_length :].tolist()
    )
    assert np.array_equal(again.mask[again.prompt_length :], good.mask[good.prompt_length :])
