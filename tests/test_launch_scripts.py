"""The scripts of the places to run: everything missing is said at once, and the right commands are given.

`gcloud`, `sbatch` and `srun` are replaced by programs that write down how they were called.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from carr_jax.command import cluster, parse

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
JOB = ["sft", "--config=configs/sft_tiny.py", "--config.world.hops=(2,)"]
TOOLS = "bash env dirname basename git grep head mkdir mktemp rm sed sleep"
STUB = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0") $*" >> "$CALLS"
case "$*" in
    *"get-value project"*) echo some-project ;;
    *"auth list"*) echo me ;;
    *" describe "*) [[ -e "$CALLS.state" ]] && head -n 1 "$CALLS.state" && sed -i 1d "$CALLS.state" ;;
    *" create "*) printf 'WAITING_FOR_RESOURCES\\nPROVISIONING\\nACTIVE\\n' > "$CALLS.state" ;;
    *"launch/sft.py"*) exit "${RUN_STATUS:-0}" ;;
esac
true
"""


class Place:
    """A machine with the given programs, and nothing else of the real environment."""

    def __init__(self, folder: Path, stubs: str) -> None:
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS.split():
            (self.bin / tool).symlink_to(shutil.which(tool))
        for name in stubs.split():
            (self.bin / name).write_text(STUB)
            (self.bin / name).chmod(0o755)

    def run(self, script, *arguments, **environment):
        environment = {
            "PATH": str(self.bin),
            "HOME": str(self.bin.parent),
            "CALLS": str(self.calls),
            "PYTHON": sys.executable,
            **environment,
        }
        return subprocess.run(
            [ROOT / "launch" / script, *arguments], env=environment, capture_output=True, text=True, timeout=240
        )

    def called(self):
        return self.calls.read_text().splitlines() if self.calls.exists() else []


def python_command(line, job="sft"):
    """The arguments of launch/JOB.py in a shown or recorded command line; they must be understood."""
    words = [word.replace("=configs/", f"={ROOT}/configs/") for word in shlex.split(line)]
    argv = words[words.index(f"launch/{job}.py") :]
    return argv, *parse(argv)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_the_syntax_is_right(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    if shutil.which("shellcheck"):
        checked = subprocess.run(["shellcheck", "-x", script], cwd=ROOT, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("local.sh", ["train or sft", "--config=", "the interpreter nowhere/python"]),
        ("slurm.sh", ["train or sft", "--config=", "sbatch", "srun", "NODES", "GPUS", "nowhere/python"]),
        (
            "tpu_pod.sh",
            [
                "train or sft",
                "--config=",
                "gcloud",
                "TPU_NAME",
                "ZONE",
                "ACCELERATOR_TYPE",
                "SHARED",
                "--workdir=",
            ],
        ),
    ],
)
def test_everything_missing_is_said_at_once(script, wanted, tmp_path):
    place = Place(tmp_path, "")
    result = place.run(script, PYTHON="nowhere/python")
    assert result.returncode == 2 and result.stdout == ""
    first, *lines = result.stderr.splitlines()
    assert first == f"{script}: cannot start, missing:"
    assert len(lines) == len(wanted)
    for what in wanted:
        assert any(what in line for line in lines), what


def test_a_configuration_that_is_not_there(tmp_path):
    result = Place(tmp_path, "").run("local.sh", "sft", "--config=configs/nothing.py")
    assert result.returncode == 2 and "the file configs/nothing.py" in result.stderr


def test_one_box(tmp_path):
    shown = Place(tmp_path, "").run("local.sh", "--dry-run", *JOB, "--workdir=runs/a b")
    assert shown.returncode == 0
    argv, config, workdir = python_command(shown.stdout)
    assert config.world.hops == (2,) and workdir == Path("runs/a b")
    assert cluster(argv, {}) is None
    assert "XLA" not in shown.stdout


def test_one_box_with_gpus_needs_jax_for_them(tmp_path):
    place = Place(tmp_path, "")
    (place.bin / "nvidia-smi").write_text("#!/usr/bin/env bash\nprintf 'GPU 0: x\\nGPU 1: x\\n'\n")
    (place.bin / "nvidia-smi").chmod(0o755)
    result = place.run("local.sh", "--dry-run", *JOB)
    if result.returncode:  # the usual environment has no CUDA
        assert "jax for the 2 GPUs of this box" in result.stderr
    else:
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.92" in result.stdout


# ------------------------------------------------------------------------------------------- slurm


def test_slurm_runs_one_process_on_each_node(tmp_path):
    place = Place(tmp_path, "sbatch srun")
    settings = {"NODES": "2", "GPUS": "8", "SBATCH_OPTIONS": "--partition=gpu --account=lab"}
    shown = place.run("slurm.sh", "--dry-run", *JOB, **settings)
    assert shown.returncode == 0 and place.called() == []
    words = shlex.split(shown.stdout)
    assert words[0] == "sbatch"
    wanted = "--nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --requeue --partition=gpu --account=lab"
    assert set(wanted.split()) <= set(words)
    (step,) = (word.removeprefix("--wrap=") for word in words if word.startswith("--wrap="))
    assert "srun " in step
    argv, config, _ = python_command(step)
    assert config.world.hops == (2,)
    assert cluster(argv, {}) == {}, "it asks Slurm"


def test_slurm_submits_what_it_shows(tmp_path):
    place = Place(tmp_path, "sbatch srun")
    done = place.run("slurm.sh", *JOB, NODES="3", GPUS="0")
    assert done.returncode == 0, done.stderr
    (call,) = place.called()
    assert call.startswith("sbatch ") and "--nodes=3" in call and "--gpus" not in call
    assert "launch/sft.py --distributed --config=configs/sft_tiny.py '--config.world.hops=(2,)'" in call


def test_reinforcement_learning_on_several_nodes_needs_servers(tmp_path):
    place = Place(tmp_path, "sbatch srun")
    job = ["train", "--config=configs/c_grpo_tiny.py"]
    refused = place.run("slurm.sh", *job, NODES="2", GPUS="8")
    assert refused.returncode == 2 and "servers for train on several hosts" in refused.stderr
    assert place.run("slurm.sh", *job, NODES="1", GPUS="8").returncode == 0
    servers = "--config.rollout.servers=('http://somewhere:30000',)"
    assert place.run("slurm.sh", *job, servers, NODES="2", GPUS="8").returncode == 0


SERVED = {"NODES": "2", "SERVER_NODES": "1", "GPUS": "4"}


def test_slurm_gives_servers_nodes_of_their_own(tmp_path):
    place = Place(tmp_path, "sbatch srun scontrol")
    shown = place.run("slurm.sh", "--dry-run", "train", "--config=configs/c_grpo_4b.py", **SERVED)
    assert shown.returncode == 0, shown.stderr
    words = shlex.split(shown.stdout)
    assert "--nodes=3" in words
    (step,) = (w for w in words if w.startswith("--wrap="))
    assert "SERVER_NODES=1 launch/slurm_servers.sh train --config=configs/c_grpo_4b.py" in step
    assert "srun" not in step
    wrong = place.run("slurm.sh", *JOB, **SERVED)
    assert wrong.returncode == 2 and "only it needs SERVER_NODES" in wrong.stderr


def test_a_job_starts_its_servers_and_then_trains(tmp_path):
    """The first node has two servers of two GPUs; python is a stub that finds them ready at the second look."""
    place = Place(tmp_path, "srun")
    for tool in ("seq", "wc"):
        (place.bin / tool).symlink_to(shutil.which(tool))
    (place.bin / "scontrol").write_text("#!/usr/bin/env bash\nprintf 'n1\\nn2\\nn3\\n'\n")
    (place.bin / "scontrol").chmod(0o755)
    srun = STUB.replace("true\n", '[[ "$*" == *serve_sglang* ]] && sleep 5\ntrue\n')
    (place.bin / "srun").write_text(srun)
    python = place.bin / "python"
    python.write_text(STUB + '[[ -e "$CALLS.seen" ]] || { : > "$CALLS.seen"; exit 2; }\n')
    python.chmod(0o755)
    options = ["--config=configs/c_grpo_4b.py", "--config.serve.tensor=2"]
    settings = {"PYTHON": str(python), "GPUS": "4", "SERVER_NODES": "1", "SLURM_JOB_NODELIST": "n[1-3]"}
    done = place.run("slurm_servers.sh", "train", *options, **settings, POLL_S="0")
    assert done.returncode == 0, done.stderr
    calls = place.called()
    servers = sorted(c for c in calls if c.startswith("srun") and "serve_sglang" in c)
    assert len(servers) == 2
    assert all("--nodelist=n1" in c and "--config.serve.host=n1" in c for c in servers)
    assert "CUDA_VISIBLE_DEVICES=0,1" in servers[0] and "CUDA_VISIBLE_DEVICES=2,3" in servers[1]
    assert len([c for c in calls if c.startswith("python") and c.endswith("--attach")]) == 2
    (training,) = (c for c in calls if "launch/train.py" in c)
    assert calls[-1] == training
    assert "--nodes=2" in training and "--nodelist=n2,n3" in training and "--distributed" in training
    assert "--config.rollout.servers=('http://n1:30000','http://n1:30002',)" in training


# ------------------------------------------------------------------------------------------- TPU pod

POD = {
    "TPU_NAME": "pod",
    "ZONE": "here-1a",
    "ACCELERATOR_TYPE": "v6e-16",
    "SHARED": "10.0.0.2:/share",
    "POLL_S": "0",
}
POD_JOB = [*JOB, "--workdir=/mnt/shared/run"]


def test_a_pod_is_requested_used_and_deleted(tmp_path):
    place = Place(tmp_path, "gcloud")
    done = place.run("tpu_pod.sh", *POD_JOB, **POD, TPU_OPTIONS="--spot")
    assert done.returncode == 0, done.stderr
    steps = [c for c in place.called() if not any(w in c for w in (" describe ", "get-value", "auth list"))]
    create, copy, install, mount, run, delete = rejoined(steps)
    assert "queued-resources create pod" in create and "--runtime-version=v2-alpha-tpuv6e --spot" in create
    assert " scp " in copy and copy.endswith("--worker=all")
    assert '-c constraints.txt -e ".[tpu]"' in install and "--worker=all" in install
    assert "sudo mount -t nfs 10.0.0.2:/share /mnt/shared" in mount
    assert "--worker=all" in run and "--xla_tpu_scoped_vmem_limit_kib=98304" in run
    argv, config, workdir = python_command(run.partition("--command=")[2])
    assert workdir == Path("/mnt/shared/run") and config.world.hops == (2,)
    assert cluster(argv, {}) == {}, "it asks the pod"
    assert "queued-resources delete pod" in delete and "--force" in delete
    waited = [c for c in place.called() if " describe " in c]
    assert len(waited) == 4, "once before the request, then until it is active"


def rejoined(lines):
    """Calls as they were: a command of several lines is one call."""
    calls = []
    for line in lines:
        if line.startswith("gcloud "):
            calls.append(line)
        else:
            calls[-1] += "\n" + line
    return calls


def test_a_pod_stays_after_a_failure_and_says_what_to_do(tmp_path):
    place = Place(tmp_path, "gcloud")
    failed = place.run("tpu_pod.sh", *POD_JOB, **POD, RUN_STATUS="2")
    assert failed.returncode == 1 and "launch/tpu_pod.sh delete" in failed.stderr
    assert not any(" delete " in c for c in place.called())
    assert place.run("tpu_pod.sh", "delete", TPU_NAME="pod", ZONE="here-1a").returncode == 0
    assert "queued-resources delete pod --zone=here-1a" in place.called()[-1]


def test_a_pod_that_is_there_is_taken_and_one_that_failed_is_not(tmp_path):
    place = Place(tmp_path, "gcloud")
    state = Path(f"{place.calls}.state")
    state.write_text("ACTIVE\nACTIVE\n")
    assert place.run("tpu_pod.sh", *POD_JOB, **POD, KEEP="1").returncode == 0
    assert not any(" create " in c or " delete " in c for c in place.called())
    state.write_text("FAILED\nFAILED\n")
    failed = place.run("tpu_pod.sh", *POD_JOB, **POD)
    assert failed.returncode == 1 and "is FAILED" in failed.stderr


def test_a_dry_run_of_a_pod_calls_nothing(tmp_path):
    place = Place(tmp_path, "gcloud")
    shown = place.run("tpu_pod.sh", "--dry-run", *POD_JOB, **POD)
    assert shown.returncode == 0, shown.stderr
    assert not any(" tpus " in c for c in place.called()), "only the login was looked at"
    lines = shown.stdout.splitlines()
    (run,) = (line for line in lines if "launch/sft.py" in line)
    (command,) = (w.removeprefix("--command=") for w in shlex.split(run) if w.startswith("--command="))
    argv, _, workdir = python_command(command)
    assert "--distributed" in argv and workdir == Path("/mnt/shared/run")
    assert lines[-1].startswith("gcloud compute tpus queued-resources delete pod")


def test_reinforcement_learning_runs_on_a_pod_of_one_host_only(tmp_path):
    place = Place(tmp_path, "gcloud")
    job = ["--dry-run", "train", "--config=configs/c_grpo_tiny.py", "--workdir=/mnt/shared/run"]
    refused = place.run("tpu_pod.sh", *job, **POD)
    assert refused.returncode == 2 and "servers for train on several hosts" in refused.stderr
    assert place.run("tpu_pod.sh", *job, **POD | {"ACCELERATOR_TYPE": "v6e-8"}).returncode == 0


def test_an_unknown_kind_of_pod_needs_its_software_version(tmp_path):
    place = Place(tmp_path, "gcloud")
    odd = POD | {"ACCELERATOR_TYPE": "v99-8"}
    refused = place.run("tpu_pod.sh", *POD_JOB, **odd)
    assert refused.returncode == 2 and "RUNTIME_VERSION" in refused.stderr
    assert place.run("tpu_pod.sh", "--dry-run", *POD_JOB, **odd, RUNTIME_VERSION="v2").returncode == 0


# ------------------------------------------------------------------------------------------- SkyPilot


def test_the_skypilot_task_starts_one_process_on_each_node(tmp_path):
    task = yaml.safe_load((ROOT / "launch" / "skypilot.yaml").read_text())
    assert task["envs"]["BUCKET"] is None and task["envs"]["ARGUMENTS"] is None, "SkyPilot asks for them"
    assert task["file_mounts"]["/shared"]["source"] == "${BUCKET}"
    assert subprocess.run(["bash", "-n", "-c", task["setup"]]).returncode == 0
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    environment = {
        **os.environ,
        "ARGUMENTS": "sft --config=configs/sft_tiny.py --workdir=/shared/run",
        "PORT": task["envs"]["PORT"],
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
    }
    done = subprocess.run(
        ["bash", "-c", task["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    argv, _, workdir = python_command(shlex.join(done.stdout.split()))
    assert workdir == Path("/shared/run")
    assert cluster(argv, {}) == {"coordinator": "10.0.0.1:8476", "processes": 2, "process": 1}
