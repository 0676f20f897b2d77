"""Benchmarks lean on insides that change: each still runs, at its smallest, whatever it measures here."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
QUICK = {
    "rollout_sim.py": ["--staleness=0", "--steps=2"],
    "event_loop.py": ["--episodes=20", "--turns=2", "--seconds=0.2"],
    "web_tools.py": ["--sessions=20", "--calls=100", "--latency=0.05"],
}
SLOW = {
    "compare.py": ["--shape=2x64", "--rounds=1", "--steps=1"],
    "datasets.py": [],
    "depth.py": ["--shape=1x64", "--steps=1"],
    "head.py": ["--target=cpu"],
    "index.py": ["--sizes=1000"],
    "judge_tokens.py": [],
    "packing.py": [],
    "rewards.py": [],
}


@pytest.mark.parametrize(
    "name, options",
    [
        *QUICK.items(),
        *(pytest.param(*item, marks=pytest.mark.slow) for item in SLOW.items()),
    ],
)
def test_it_runs(name, options, tmp_path):
    """A bar that is missed here is no failure: speed depends on the machine."""
    command = [sys.executable, FOLDER / name, *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert done.stdout.strip()


def test_all_are_known():
    """Those that are left out measure others' programs, or are parts of the rest."""
    peers, parts = {"peer_torch.py", "peer_tunix.py"}, {"common.py", "fake_time.py", "pretended_server.py"}
    left_out = peers | parts | {"train_step.py"}
    assert {p.name for p in FOLDER.glob("*.py")} == QUICK.keys() | SLOW.keys() | left_out
