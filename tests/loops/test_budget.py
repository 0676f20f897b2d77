"""A run whose judge may cost so much and no more: it stops in one line, and goes on as if it never had."""

import asyncio
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from processes import finish, start_two
from test_train import ROOT, ROW, command, environment, rows_without_times  # noqa: F401 (a fixture)

sys.path.append(str(Path(__file__).parents[1] / "llm"))
from stub import Stub

STEPS = 3


def mind(body):
    """An honest judge of outcomes, which finds no names."""
    system, user = (message["content"] for message in body["messages"])
    said = {"code": re.search(r'its "code" is "(\w+)"', user)[1]}
    blocks = dict(re.findall(r"\[\[begin (\w+) \w{12}\]\]\n(.*?)\n\[\[end", user, re.DOTALL))
    if "ACCEPTED" in blocks:
        final = re.search(r"## Exact Answer\n(.+)", blocks["RESPONSE"])
        right = final is not None and final[1].strip() in blocks["ACCEPTED"].split("\n")
        return json.dumps(said | {"final_answer": final and final[1], "reason": "", "correct": right})
    return json.dumps(said | dict.fromkeys(re.findall(r'"(E\d+)": "', system)))


@pytest.fixture(scope="module")
def server():
    """The stub on a thread of its own, as runs are processes of their own."""
    loop, stub = asyncio.new_event_loop(), Stub(mind)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(stub.__aenter__(), loop).result()
    yield stub
    asyncio.run_coroutine_threadsafe(stub.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def judged(workdir, server, *options):
    """The command of a run with this judge."""
    return [
        *command(workdir, STEPS),
        "--config.judge.kind=llm",
        f"--config.judge.endpoints=('{server.url} JUDGE_KEY',)",
        "--config.judge.price_prompt=1.0",
        "--config.judge.price_completion=1.0",
        "--config.data.held_out_questions=0",
        *options,
    ]


def run(workdir, server, environment, *options):  # noqa: F811
    return subprocess.run(
        judged(workdir, server, *options),
        cwd=ROOT,
        env=environment | {"JUDGE_KEY": "secret-key"},
        capture_output=True,
        text=True,
    )


def result(workdir):
    costs = ("judge/calls", "judge/cached", "judge/tokens", "judge/cost_usd", "judge/invalid_rate")
    rows = [{k: v for k, v in row.items() if k not in costs} for row in rows_without_times(workdir)]
    return rows, (workdir / "policy" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_stopped_by_its_budget_and_resumed_it_ends_bit_for_bit_the_same(server, environment, tmp_path):  # noqa: F811
    whole = run(tmp_path / "whole", server, environment)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    calls = len(server.calls)
    assert calls > 0

    stops, workdir = [], tmp_path / "stopped"
    for budget in (0.0032, 0.0045, 0.0055):  # some $0.003 are held for a call, which then costs 0.00011
        stopped = run(workdir, server, environment, f"--config.judge.budget_usd={budget}")
        assert stopped.returncode == 2, stopped.stdout + stopped.stderr
        assert stopped.stdout.strip().endswith(
            "give a larger config.judge.budget_usd, and the same command goes on from here"
        )
        assert "Traceback" not in stopped.stdout + stopped.stderr
        stops.append(max((int(p.name) for p in (workdir / "checkpoints").glob("[0-9]*")), default=None))
    assert stops[0] == 0 and stops[-1] > 0, stops  # in the first step there is a checkpoint too
    spent = [json.loads(line)["cost_usd"] for line in (workdir / "judge" / "ledger.jsonl").open()]
    assert 0 < sum(spent) <= 0.0055

    done = run(workdir, server, environment, "--config.judge.budget_usd=1.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert result(workdir) == result(tmp_path / "whole")
    for path in workdir.rglob("*"):
        assert not path.is_file() or b"secret-key" not in path.read_bytes(), path

    asked = len(server.calls)
    again = run(
        tmp_path / "again",
        server,
        environment,
        "--config.judge.replay=True",
        f"--config.judge.cache={tmp_path / 'whole' / 'judge' / 'replies.sqlite'}",
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(server.calls) == asked and result(tmp_path / "again") == result(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on(server, environment, tmp_path):  # noqa: F811
    policy = ROOT / "carr_jax" / "assets" / "sft_tiny"
    shape = [f"--policy={policy}", "--slots=12", f"--max-length={ROW}", "--deterministic"]
    engine = subprocess.Popen(
        [sys.executable, "tests/rollout/standin.py", *shape],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = engine.stdout.readline().split()[-1]
        options = [
            "--config.rollout.engine=sglang",
            f"--config.rollout.servers=('{address}',)",
            f"--config.rollout.weights_folder={tmp_path / 'weights'}",
            "--config.mesh.fsdp=2",
        ]
        workdir = tmp_path / "run"
        for budget, status in ((0.0048, 2), (1.0, 0)):
            arguments = judged(workdir, server, *options, f"--config.judge.budget_usd={budget}")[1:]
            results = finish(start_two(arguments, JUDGE_KEY="secret-key"))
            assert [returned for returned, _ in results] == [status, status], "\n".join(t for _, t in results)
            if status:
                assert "and the same command goes on from here" in results[0][1]
                assert "the first process has stopped" in results[1][1]
                assert list((workdir / "checkpoints").glob("[0-9]*"))
    finally:
        engine.kill()
        engine.wait()
    assert [row["step"] for row in rows_without_times(workdir)] == list(range(1, STEPS + 1))
