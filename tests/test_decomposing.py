"""launch/rubrics.py: what is kept and asked again, what is frozen, and what a person sees."""

import asyncio
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "llm"))
from stub import Stub

from carr_jax.data.frozen import manifest_of, rejects_of
from carr_jax.data.sources import read_questions
from carr_jax.decomposing import make_file
from carr_jax.records import InputError, Question, Rubric
from carr_jax.rewards.rubric_maker import Made, from_evidence
from carr_jax.stored import to_json

ROOT = Path(__file__).parents[1]
QUESTIONS = [Question(f"q{i}", f"Which one is number {i}?", f"Answer {i}") for i in range(6)]
FACT = (Rubric("<E0> is the one."),)


def clean(question):
    return Made(Question(**{**vars(question), "rubrics": FACT}), rounds=1, calls=1, tokens=10, cost_usd=0.5)


class Maker:
    """Later questions are done first; `bad` ones are unclean, `down` ones unknown, `stop` raises."""

    def __init__(self, bad=(), down=(), stop=None):
        self.bad, self.down, self.stop, self.asked = bad, down, stop, []

    async def __call__(self, question):
        self.asked.append(question.id)
        if question.id == self.stop:
            raise RuntimeError("no money")
        await asyncio.sleep(0.02 - 0.003 * int(question.id[1:]))
        if question.id in self.down:
            return Made(None, reason="down")
        return Made(None, ("bad",), ("x",)) if question.id in self.bad else clean(question)


def go(out, maker, questions=QUESTIONS, in_flight=64):
    return asyncio.run(make_file(questions, out, maker, {"by": "m"}, in_flight))


def test_the_file_is_in_order_frozen_and_read(tmp_path):
    out = tmp_path / "new" / "o.jsonl"
    report = go(out, Maker(bad=("q2",)))
    assert [q.id for q in report.questions] == ["q0", "q1", "q3", "q4", "q5"]
    assert (report.rounds, report.calls, report.tokens, report.cost_usd) == (5, 5, 50, 2.5)
    assert read_questions(out) == read_questions(out.parent) == list(report.questions)
    assert json.loads(rejects_of(out).read_text()) == {"id": "q2", "findings": ["bad"], "rubrics": ["x"]}
    manifest = json.loads(manifest_of(out).read_text())
    assert (manifest["by"], manifest["questions"], manifest["rejected"]) == ("m", 5, 1)
    assert (manifest["rubrics_per_question"], manifest["entities"]) == (1.0, 5)
    card = (tmp_path / "new" / "o.jsonl.card.md").read_text()
    assert "| train | 5 |" in card and "| rejected | 1 |" in card and manifest["sha256"] in card
    before, second = out.read_bytes(), Maker()
    again = go(out, second)
    assert second.asked == [] and again.kept == 6 and again.questions == report.questions
    assert out.read_bytes() == before
    for file in (out, out.parent):
        out.write_bytes(before + b"\n")
        with pytest.raises(InputError, match="o.jsonl: it was changed since it was frozen"):
            read_questions(file)
    with pytest.raises(InputError, match="changed since"):
        go(out, second)
    manifest_of(out).write_text("{}")
    with pytest.raises(InputError, match="no manifest"):
        read_questions(out)


def test_what_failed_is_asked_again_and_the_rest_is_kept(tmp_path):
    out = tmp_path / "o.jsonl"
    report = go(out, Maker(down=("q1", "q4")))
    assert report.failed == {"q4": "down", "q1": "down"} and not manifest_of(out).exists()
    second = Maker()
    assert go(out, second).kept == 4 and second.asked == ["q1", "q4"]
    assert [q.id for q in read_questions(out)] == [q.id for q in QUESTIONS] and manifest_of(out).exists()


def test_a_stop_saves_what_was_under_way(tmp_path):
    out = tmp_path / "o.jsonl"
    first = Maker(stop="q3")
    with pytest.raises(RuntimeError, match="no money"):
        go(out, first, in_flight=4)
    assert first.asked == ["q0", "q1", "q2", "q3"]  # nobody else was started
    with out.open("ab") as file:
        file.write(b'{"id": "q9", "quest')  # and a kill tore a line off
    second = Maker()
    assert go(out, second).kept == 3 and second.asked == ["q3", "q4", "q5"]
    assert len(read_questions(out)) == 6
    manifest_of(out).unlink()  # a kill just before the end
    assert go(out, second).kept == 6 and manifest_of(out).exists()


def test_the_same_bytes_however_it_was_interrupted(tmp_path):
    with pytest.raises(RuntimeError):
        go(tmp_path / "a.jsonl", Maker(stop="q2"), in_flight=2)
    go(tmp_path / "a.jsonl", Maker(bad=("q5",)))
    go(tmp_path / "b.jsonl", Maker(bad=("q5",)), in_flight=1)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_no_more_at_a_time_than_allowed(tmp_path):
    running = most = 0

    async def make(question):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return clean(question)

    asyncio.run(make_file(QUESTIONS, tmp_path / "o.jsonl", make, {}, 2))
    assert most == 2


def test_a_file_of_other_questions_is_not_written_over(tmp_path):
    out = tmp_path / "o.jsonl"
    go(out, Maker())
    with pytest.raises(InputError, match="'q0', which is not in this source"):
        go(out, Maker(), [Question("q0", "Another?", "x")])
    out.write_text("no row\n")
    manifest_of(out).unlink()
    with pytest.raises(InputError, match="o.jsonl:1: no row of this program"):
        go(out, Maker())


def script(*arguments):
    command = [sys.executable, str(ROOT / "launch/rubrics.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out" / "o.jsonl"
    rows = [clean(QUESTIONS[0]).question, QUESTIONS[1]]
    source.write_text("".join(json.dumps(to_json(row)) + "\n" for row in rows))
    done = script(source, "--from-evidence", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "1 questions (0 were done before), 1 rubrics (1.0 each)" in done.stdout
    assert "1 times: it has no evidence" in done.stdout and read_questions(out) == [rows[0]]
    assert from_evidence(rows[0]).question == rows[0]
    large = f"--config={ROOT / 'configs/c_grpo_4b.py'}"
    assert script(source, "--from-evidence", large, f"--out={out}").returncode == 0  # without its key
    bad = script(source, f"--out={out}")
    assert (bad.returncode, bad.stdout.count("\n")) == (2, 1) and "--from-evidence" in bad.stdout
    bad = script(source, "--from-evidence", f"--out={tmp_path / 'o.txt'}")
    assert bad.returncode == 2 and "must be a file that ends in .jsonl" in bad.stdout


def test_the_command_asks_a_model_within_its_budget(tmp_path):
    """The same command, killed by the budget after one question, goes on with a larger one."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out" / "o.jsonl"
    source.write_text("".join(json.dumps(to_json(question)) + "\n" for question in QUESTIONS[:3]))

    def mind(body):
        code = re.search(r'its "code" is "(\w+)"', body["messages"][1]["content"])[1]
        return json.dumps({"code": code, "rubrics": ["<E0> is the one."]})

    async def command(stub, budget):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "launch/rubrics.py"),
            str(source),
            f"--out={out}",
            f"--config={ROOT / 'configs/c_grpo_4b.py'}",
            *stub.as_judge(budget),
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0].decode(), process.returncode

    async def test():
        async with Stub(mind) as stub:
            said, status = await command(stub, 1.05)
            assert status == 2 and "of the budget of $1.05 are spent" in said
            assert "give a larger config.judge.budget_usd" in said
            assert said.strip().count("\n") == 0 and len(stub.calls) == 1
            said, status = await command(stub, 200.0)
            assert status == 0 and "3 questions" in said and len(stub.calls) == 3

    asyncio.run(test())
    assert [r.text for q in read_questions(out) for r in q.rubrics] == ["<E0> is the one."] * 3
    assert json.loads(manifest_of(out).read_text())["rounds"] == 3


def test_the_command_adds_variants_and_keeps_the_rubrics(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out" / "o.jsonl"
    row = dataclasses.replace(clean(QUESTIONS[0]).question, entities={"E0": ("Xanten",)})
    source.write_text(json.dumps(to_json(row)) + "\n")

    def mind(body):
        code = re.search(r'its "code" is "(\w+)"', body["messages"][1]["content"])[1]
        return json.dumps({"code": code, "E0": ["Xanten am Rhein"]})

    async def test():
        async with Stub(mind) as stub:
            options = [f'--config.judge.endpoints=("{stub.url}",)', f"--out={out}", "--variants"]
            config = f"--config={ROOT / 'configs/c_grpo_4b.py'}"
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(ROOT / "launch/rubrics.py"), str(source), config, *options
            )
            assert await process.wait() == 0

    asyncio.run(test())
    (question,) = read_questions(out)
    assert question.metadata["variants"] == {"E0": ["Xanten am Rhein"]}
    assert dataclasses.replace(question, metadata=row.metadata) == row
    assert json.loads(manifest_of(out).read_text())["made"] == "variants"
    bad = script(source, "--variants", "--from-evidence", f"--out={out}")
    assert bad.returncode == 2 and "give one of the two" in bad.stdout
