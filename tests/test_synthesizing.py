"""launch/synthesize.py: which questions a plan gives, what a kill leaves, what is refused, what people see."""

import asyncio
import collections
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "llm"))
from stub import Stub

from carr_jax.agent.chat import Chat
from carr_jax.agent.episode import Budgets
from carr_jax.agent.tokenizer import Tokenizer
from carr_jax.attempting import by_teacher, one_search
from carr_jax.collecting import by_expert, by_rewards
from carr_jax.data.card import card_of
from carr_jax.data.frozen import manifest_of, rejects_of
from carr_jax.data.sources import read_questions
from carr_jax.data.wording import faults
from carr_jax.records import InputError, Question
from carr_jax.rewards.judge import ExactJudge
from carr_jax.rewards.lint import connected_to_answer, lint
from carr_jax.rewards.rejection import Bar
from carr_jax.rewards.rubric_maker import Made
from carr_jax.rollout.scheduler import Rollouts
from carr_jax.search.corpus import Corpus
from carr_jax.search.world import WorldConfig, build_world
from carr_jax.synthesizing import Plan, candidates, counts, make_file
from carr_jax.world_graph import graph_of_world

ROOT = Path(__file__).parents[1]
PLAN = Plan("w", split="train", hops=(2, 3))


@pytest.fixture(scope="module")
def graph():
    return graph_of_world(build_world(WorldConfig(entities_per_kind=30, distractors=40, look_alikes=10)))


class Finish:
    """Later questions are done first; every `bad`-th is refused, `down` ones are unknown, call `stop` fails."""

    def __init__(self, bad=0, down=(), stop=0):
        self.bad, self.down, self.stop, self.asked = bad, down, stop, []

    async def __call__(self, question):
        self.asked.append(question.id)
        if len(self.asked) == self.stop:
            raise RuntimeError("no money")
        await asyncio.sleep(0.001 * (int(question.id[-2:], 16) % 7))
        if question.id in self.down:
            return Made(None, reason="down")
        if self.bad and int(question.id[-4:], 16) % self.bad == 0:
            return Made(None, ("too easy for the agent that tries it",))
        return Made(question, calls=1, tokens=10, cost_usd=0.5)


def go(graph, out, finish, count=30, plan=PLAN, at_once=8, **how):
    return asyncio.run(make_file(graph, plan, count, out, finish, how, at_once))


def test_a_plan_always_gives_the_same_candidates(graph):
    first, second = candidates(graph, PLAN), candidates(graph, PLAN)
    some = [next(first) for _ in range(60)]
    assert some == [next(second) for _ in range(60)]
    questions = [made for made in some if isinstance(made, Question)]
    assert len({q.id for q in questions}) == len(questions) > 40
    other = candidates(graph, dataclasses.replace(PLAN, seed=1))
    assert [next(other) for _ in range(60)] != some


def test_the_file_is_in_order_frozen_and_read(tmp_path, graph):
    out = tmp_path / "new" / "o.jsonl"
    report = go(graph, out, Finish(bad=5), model="m")
    assert read_questions(out) == list(report.questions) and len(report.questions) == 30
    order = [q.id for q in candidates_until(graph, report.candidates)]
    assert [q.id for q in report.questions] == [i for i in order if i not in {r.id for r in report.rejected}]
    assert report.refused["too easy for the agent that tries it"] == len(report.rejected) > 0
    assert [json.loads(line)["id"] for line in rejects_of(out).read_text().splitlines()] == [
        r.id for r in report.rejected
    ]
    manifest = json.loads(manifest_of(out).read_text())
    assert (manifest["questions"], manifest["model"], manifest["hops"]) == (30, "m", [2, 3])
    assert manifest["refused"] == counts(report)["refused"] and not out.with_name("o.jsonl.plan.json").exists()
    again = Finish()
    assert go(graph, out, again, model="m").kept == 30 and again.asked == []


def candidates_until(graph, number):
    stream = candidates(graph, PLAN)
    return [made for made in (next(stream) for _ in range(number)) if isinstance(made, Question)]


def test_the_same_bytes_however_it_was_interrupted(tmp_path, graph):
    a, b, c = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    go(graph, a, Finish(bad=4), at_once=1)
    for stop in (3, 9, 12):
        with pytest.raises(RuntimeError):
            go(graph, b, Finish(bad=4, stop=stop), at_once=11)
        with b.open("ab") as file:
            file.write(b'{"id": "torn')
    go(graph, b, Finish(bad=4), at_once=5)
    go(graph, c, Finish(bad=4), count=11)
    go(graph, c, Finish(bad=4))  # a larger count adds to it
    for of in (lambda p: p, rejects_of, manifest_of):
        assert of(a).read_bytes() == of(b).read_bytes() == of(c).read_bytes()


def test_what_is_unknown_is_tried_again(tmp_path, graph):
    whole, out = tmp_path / "w.jsonl", tmp_path / "o.jsonl"
    expected = go(graph, whole, Finish())
    down = {q.id for q in expected.questions[5:8]}
    report = go(graph, out, Finish(down=down))
    assert set(report.failed) == down and not manifest_of(out).exists()
    second = Finish()
    assert go(graph, out, second).kept == 27 and set(second.asked) == down
    assert out.read_bytes() == whole.read_bytes()


def test_another_plan_or_a_changed_file_is_not_written_over(tmp_path, graph):
    out = tmp_path / "o.jsonl"
    go(graph, out, Finish(), count=5)
    before = out.read_bytes()
    with pytest.raises(InputError, match="was made with seed=0, and now it is 1"):
        go(graph, out, Finish(), count=5, plan=dataclasses.replace(PLAN, seed=1))
    with pytest.raises(InputError, match="holds 5 questions already"):
        go(graph, out, Finish(), count=4)
    with pytest.raises(RuntimeError):
        go(graph, out, Finish(stop=2), count=9, at_once=1)
    with pytest.raises(InputError, match="was made with hops"):
        go(graph, out, Finish(), count=9, plan=dataclasses.replace(PLAN, hops=(2,)))
    go(graph, out, Finish(), count=9)
    assert out.read_bytes().startswith(before)
    out.write_bytes(before)
    with pytest.raises(InputError, match="changed since it was frozen"):
        go(graph, out, Finish(), count=9)
    (tmp_path / "mine.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"mine.jsonl was not made by this program"):
        go(graph, tmp_path / "mine.jsonl", Finish())


def test_a_graph_that_is_too_small_says_so(tmp_path, graph):
    plan = dataclasses.replace(PLAN, strategies=("walk",), most_links=1)
    with pytest.raises(InputError, match=r"gave \d+ questions of 3 in 290 attempts .*does not lead so far"):
        go(graph, tmp_path / "o.jsonl", Finish(), 3, plan)
    with pytest.raises(InputError, match="no entity of the graph has the split 'test'"):
        go(graph, tmp_path / "p.jsonl", Finish(), plan=dataclasses.replace(PLAN, split="test"))


# ----------------------------------------------------------------------------------------- what it must show


def world_questions(tmp_path, count):
    """Questions of the default world as the command makes them, and its search."""
    world = build_world(WorldConfig())
    corpus = Corpus(world.pages)
    search = one_search(corpus)

    async def finish(question):
        solved = await search(question, 0)
        return Made(None, ("too easy",)) if solved else Made(question)

    plan = Plan("world0", split="train")
    report = asyncio.run(make_file(graph_of_world(world), plan, count, tmp_path / "w.jsonl", finish, {}))
    return report, corpus


def solved_by_the_expert(questions, corpus):
    chat = Chat(Tokenizer.load(ROOT / "carr_jax/assets/sft_tiny"))
    rollouts = Rollouts(None, chat, corpus, Budgets(64_000, 100, 100, 8192))

    attempt = by_teacher(by_expert(rollouts), by_rewards(ExactJudge(), Bar()), Bar())

    async def solve():
        return [await attempt(question, 0) for question in questions]

    return asyncio.run(solve())


def check(report, corpus, share):
    questions = report.questions
    kinds = collections.Counter(q.metadata["strategy"] for q in questions)
    assert len(kinds) == 4 and min(kinds.values()) > 0.1 * len(questions)
    for question in questions:
        assert lint(question) == faults(question) == [] and all(connected_to_answer(question.rubrics))
    assert report.refused["too easy"] < 0.1 * len(questions)  # before they were refused
    sample = questions[:: max(1, round(1 / share))]
    assert solved_by_the_expert(sample, corpus) == [True] * len(sample)


def test_questions_of_the_world_are_clean_connected_and_solved(tmp_path):
    check(*world_questions(tmp_path, 80), share=0.25)


@pytest.mark.slow
def test_a_thousand_questions_of_the_world(tmp_path):
    check(*world_questions(tmp_path, 1000), share=1.0)


# -------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def synthesize(monkeypatch):
    """The command as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "launch"))
    import synthesize

    return lambda *arguments: synthesize.run(["launch/synthesize.py", *map(str, arguments)])


SMALL = [
    "world",
    "--config=" + str(ROOT / "configs/c_grpo_tiny.py"),
    "--config.world.entities_per_kind=25",
    "--config.world.look_alikes=20",
]


def test_the_command_survives_a_kill(tmp_path, synthesize, capsys):
    whole, killed = tmp_path / "a/o.jsonl", tmp_path / "b/o.jsonl"
    synthesize(*SMALL, "--count=60", f"--out={whole}")
    said = capsys.readouterr().out
    assert "60 questions (0 were done before)" in said and "refused: too easy" in said
    card = card_of(whole).read_text()
    assert "seed 0" in card and "| entity |" in card and "Apache-2.0" in card
    command = [sys.executable, str(ROOT / "launch/synthesize.py"), *SMALL, "--count=60", f"--out={killed}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not killed.exists() or killed.read_bytes().count(b"\n") < 10:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not manifest_of(killed).exists()
    synthesize(*SMALL, "--count=60", f"--out={killed}")
    assert "(0 were done before)" not in capsys.readouterr().out
    for of in (lambda p: p, rejects_of, manifest_of):
        assert of(killed).read_bytes() == of(whole).read_bytes()


GRAPH = [
    *(
        {
            "entity": f"{kind[0]}{i}",
            "names": [f"{kind} {i}".title()],
            "kind": kind,
            "url": f"https://x/{kind}{i}",
        }
        for kind in ("novel", "person", "town")
        for i in range(6)
    ),
    *({"subject": f"n{i}", "relation": "author", "object": f"p{i}"} for i in range(6)),
    *({"subject": f"p{i}", "relation": "birthplace", "object": f"t{i}"} for i in range(6)),
]


def wording(body):
    """The mind of a stub that says each fact in its own words, and nothing of what is hidden."""
    text = body["messages"][1]["content"]
    code = re.search(r'its "code" is "(\w+)"', text)[1]
    facts = dict(re.findall(r"^(F\d+): (.*)\.$", text, re.MULTILINE))
    words = {key: re.sub(r"<E\d>", "something", fact) for key, fact in facts.items()}
    return json.dumps({"code": code, "question": f"What fits, if {' and '.join(words.values())}?", **words})


def test_the_command_with_a_file_and_a_model_within_its_budget(tmp_path):
    """A stub words the questions; the budget ends the first run, and the same command goes on with a larger."""
    graph, out = tmp_path / "graph.jsonl", tmp_path / "o/o.jsonl"
    graph.write_text("".join(json.dumps(row) + "\n" for row in GRAPH))

    async def command(stub, budget):
        options = ["--count=4", "--strategy=walk", "--hops=2", "--obfuscate=llm", f"--out={out}"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "launch/synthesize.py"),
            str(graph),
            *options,
            f"--config={ROOT / 'configs/c_grpo_4b.py'}",
            *stub.as_judge(budget),
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0].decode(), process.returncode

    async def test():
        async with Stub(wording) as stub:
            said, status = await command(stub, 1.05)
            assert status == 2 and "of the budget of $1.05 are spent" in said and len(stub.calls) == 1
            said, status = await command(stub, 200.0)
            assert status == 0 and "4 questions (1 were done before)" in said, said

    asyncio.run(test())
    for question in read_questions(out):
        assert question.question.startswith("What fits, if The ") and " of something is " in question.question
        assert question.metadata["plain"].endswith("?") and lint(question) == []
    manifest = json.loads(manifest_of(out).read_text())
    assert (manifest["source"], manifest["obfuscate"], manifest["agent"]) == ("graph", "llm", "none")
    assert len(manifest["graph_sha256"]) == 64


@pytest.mark.slow
def test_a_thousand_questions_of_the_world_in_the_words_of_a_stub(tmp_path):
    out = tmp_path / "o.jsonl"

    async def run():
        async with Stub(wording) as stub:
            options = ["world", "--obfuscate=llm", "--count=1000", f"--out={out}"]
            config = [f"--config={ROOT / 'configs/c_grpo_4b.py'}", "--config.data.source=world"]
            config += [f'--config.judge.endpoints=("{stub.url}",)']
            command = [sys.executable, str(ROOT / "launch/synthesize.py"), *options, *config]
            assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0
            return len(stub.calls)

    assert asyncio.run(run()) >= 1000
    questions = read_questions(out)
    assert len(questions) == 1000 and all(q.question.startswith("What fits, if ") for q in questions)
    assert all(lint(q) == [] and all(connected_to_answer(q.rubrics)) for q in questions)
    sample = questions[::10]
    assert solved_by_the_expert(sample, Corpus(build_world(WorldConfig()).pages)) == [True] * len(sample)


def test_an_agent_behind_an_endpoint_tries_the_questions(tmp_path, synthesize):
    """It knows one answer and gives it to every question: kept is what it gets wrong."""
    out = tmp_path / "o.jsonl"
    synthesize(*SMALL, "--count=1", "--strategy=walk", "--obfuscate=none", "--agent=none", f"--out={out}")
    known = read_questions(out)[0]

    def mind(body):
        return f"## Explanation with Citations\nI know.\n## Exact Answer\n{known.answer}\n## References\n"

    async def command(stub):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "launch/synthesize.py"),
            *SMALL,
            *("--count=2", "--strategy=walk", "--obfuscate=none", f"--agent={stub.url} - m", "--attempts=2"),
            f"--out={tmp_path / 'tried/o.jsonl'}",
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0].decode(), process.returncode

    async def test():
        async with Stub(mind) as stub:
            said, status = await command(stub)
            assert status == 0, said
            return said, len(stub.calls)

    said, calls = asyncio.run(test())
    assert calls >= 6 and "1 refused: too easy for the agent that tries it" in said
    questions = read_questions(tmp_path / "tried/o.jsonl")
    assert known.answer not in [q.answer for q in questions] and {q.metadata["solved"] for q in questions} == {
        0
    }
    assert json.loads(manifest_of(tmp_path / "tried/o.jsonl").read_text())["agent"] == "m"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["world", "--out=o.txt"], "must be a file that ends in .jsonl"),
        (["absent.jsonl", "--out=o.jsonl"], "absent.jsonl: No such file"),
        (["world", "--out=o.jsonl", "--strategy=jump"], "--strategy=jump is not one of walk, attributes"),
        (["world", "--out=o.jsonl", "--hops=0"], "--hops=0 must be numbers from 1 to 8"),
        (["world", "--out=o.jsonl", "--solved=1,0"], "must be two shares"),
        (["world", "--out=o.jsonl", "--agent=nobody"], "--agent must be none, search, expert, engine or"),
        (["world", "--out=o.jsonl", "--prices=1"], "--prices=1 must be three numbers"),
        (["world", "--out=o.jsonl", "--split=test"], "--split=test is not one of sft, train, held_out"),
        (["world", "--out=o.jsonl", "--obfuscate=llm"], "no model to ask"),
        (["world", "--out=o.jsonl", "--agent=engine"], "--agent=engine needs config.model.policy"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path, synthesize, arguments, says, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(says)):
        synthesize(*arguments)


def test_an_agent_needs_the_pages_of_the_graph(tmp_path, synthesize):
    graph = tmp_path / "graph.jsonl"
    graph.write_text("".join(json.dumps(row) + "\n" for row in GRAPH))
    with pytest.raises(InputError, match="the agent must search the pages of the graph"):
        synthesize(graph, "--agent=search", f"--out={tmp_path / 'o.jsonl'}")
