"""Training that lags behind its rollouts: the limit holds, and a kill loses nothing that was finished."""

import signal
import subprocess
from pathlib import Path

from test_train import ROOT, command, environment, wait_for_step  # noqa: F401 (a fixture)

from carr_jax.observe.begun import read_begun
from carr_jax.observe.metrics import MetricsLog
from carr_jax.observe.viewer import read_trajectories
from carr_jax.records import End

STEPS = 5
OPTIONS = ["--config.rollout.staleness=1", "--config.rollout.refill=2", "--config.data.held_out_questions=0"]


def run(workdir, environment):  # noqa: F811
    done = subprocess.run(
        [*command(workdir, STEPS), *OPTIONS], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check(workdir: Path):
    rows = MetricsLog.read(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    worst = [row["version/staleness_max"] for row in rows]
    assert max(worst) == 1 and worst[0] == 0
    assert all(0 <= row["rollout/refilled"] <= 2 for row in rows)
    groups = [g for file in sorted((workdir / "trajectories").iterdir()) for g in read_trajectories(file)]
    assert len(groups) == 2 * STEPS
    questions = [g.question.id for g in groups]
    assert len(set(questions)) == len(questions), "64 questions are enough for no repetition"
    for group in groups:
        assert [t.sample for t in group.trajectories] == list(range(6))
        assert all(t.end is not End.UNFINISHED for t in group.trajectories)
    assert not list((workdir / "begun").glob("*.tmp"))


def test_killed_and_resumed_it_ends_with_every_finished_trajectory_in_use(environment, tmp_path):  # noqa: F811
    workdir = tmp_path / "killed"
    process = subprocess.Popen(
        [*command(workdir, STEPS), *OPTIONS],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert wait_for_step(process, workdir, 2, 0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    newest = max((workdir / "begun").glob("step_*.jsonl.gz"))
    begun = read_begun(newest)
    run(workdir, environment)
    check(workdir)
    used = {}
    for file in (workdir / "trajectories").iterdir():
        for group in read_trajectories(file):
            used |= {(t.question_id, t.sample): t for t in group.trajectories}
    caught = [t for b in begun for t in b.trajectories if t.turns]
    assert caught
    for t in caught:
        if (t.question_id, t.sample) in used:  # else its group had no spread, and was dropped
            after = used[t.question_id, t.sample]
            assert after.ids[: t.ids.size].tolist() == t.ids.tolist()
            assert t.end in (after.end, End.UNFINISHED)
    kept = sorted(p.name for p in (workdir / "begun").iterdir())
    assert kept == ["step_000004.jsonl.gz"], "that of the last checkpoint would be empty"
    assert {b.version for b in read_begun(workdir / "begun" / kept[0])} <= {3, 4}
