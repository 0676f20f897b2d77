"""How processes find each other and agree; every failure is one clear line in each of them."""

import socket
import threading

import pytest
from processes import ROOT, finish, free_port, start

from carr_jax.command import cluster, main
from carr_jax.distributed import meet, slurm_devices
from carr_jax.records import InputError

TINY = f"--config={ROOT / 'configs' / 'sft_tiny.py'}"
ADDRESS = "--coordinator=10.0.0.1:8476"


def test_one_process_is_the_default():
    assert cluster(["sft.py", TINY], {}) is None
    assert cluster(["sft.py", TINY], {"SLURM_STEP_NUM_TASKS": "1"}) is None


def test_flags_slurm_and_a_pod_make_it_one_of_several():
    given = cluster(["sft.py", TINY, ADDRESS, "--processes=4", "--process=3"], {})
    assert given == {"coordinator": "10.0.0.1:8476", "processes": 4, "process": 3}
    assert cluster(["sft.py", TINY, "--distributed"], {}) == {}
    assert cluster(["sft.py", TINY], {"SLURM_STEP_NUM_TASKS": "2"}) == {}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([ADDRESS], "belong together; give --processes, --process"),
        (["--processes=2", "--process=0"], "belong together; give --coordinator"),
        ([ADDRESS, "--processes=2", "--process=2"], "--process=2 must lie between 0 and 1"),
        ([ADDRESS, "--processes=2", "--process=-1"], "--process=-1 must lie between 0 and 1"),
        (["--coordinator=here", "--processes=2", "--process=0"], "--coordinator=here is no HOST:PORT"),
        (["--coordinator=h:99999", "--processes=2", "--process=0"], "is no HOST:PORT"),
        ([ADDRESS, "--processes=2", "--process=0", "--distributed"], "give either --distributed or"),
        ([ADDRESS, "--processes=two", "--process=0"], "two"),
    ],
)
def test_flags_that_contradict_each_other_are_one_line(flags, says, capsys, tmp_path):
    assert main(lambda *_: None, ["launch/sft.py", TINY, f"--workdir={tmp_path}", *flags]) == 2
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and says in out


def test_reinforcement_learning_is_refused_before_anybody_waits(capsys, tmp_path):
    flags = [f"--config={ROOT / 'configs' / 'c_grpo_tiny.py'}", ADDRESS, "--processes=2", "--process=0"]
    assert main(lambda *_: None, ["launch/train.py", f"--workdir={tmp_path}", *flags]) == 2
    assert "runs in one process" in capsys.readouterr().out


def test_one_slurm_process_of_a_node_takes_all_its_gpus():
    node = {"SLURM_GPUS_ON_NODE": "8", "SLURM_STEP_NUM_NODES": "2"}
    assert slurm_devices(node | {"SLURM_NTASKS": "2"}) == list(range(8))
    assert slurm_devices(node | {"SLURM_NTASKS": "16"}) is None, "one GPU each, which jax does by itself"
    assert slurm_devices({"SLURM_STEP_NUM_NODES": "2", "SLURM_NTASKS": "2"}) is None
    assert slurm_devices({}) is None


def test_asking_slurm_or_a_pod_where_there_is_none_is_one_line(tmp_path):
    ((status, text),) = finish([start(["launch/sft.py", TINY, f"--workdir={tmp_path}", "--distributed"])])
    assert status == 2
    assert text.count("\n") == 1 and "no Slurm step and no TPU pod" in text


# ------------------------------------------------------------------------------------------- the meeting


def meet_all(port, *members, timeout_s=60):
    """What each (processes, process) of the members says; None when it met the others."""
    said = [None] * len(members)

    def one(i):
        try:
            meet(f"127.0.0.1:{port}", *members[i], timeout_s)
        except InputError as error:
            said[i] = str(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_three_processes_meet_and_the_port_is_free_again():
    port = free_port()
    assert meet_all(port, (3, 2), (3, 1), (3, 0)) == [None] * 3
    assert meet_all(port, (3, 0), (3, 1), (3, 2)) == [None] * 3


def test_who_is_missing_is_named():
    first, second = meet_all(free_port(), (3, 0), (3, 2), timeout_s=3)
    assert "process 1 did not come within 3 s" in first
    assert second == first or "could not be reached" in second, "by who loses patience first"


def test_nobody_at_the_address():
    (said,) = meet_all(free_port(), (2, 1), timeout_s=0.5)
    assert "could not be reached within 0.5 s" in said and "does process 0 run there" in said


def test_different_numbers_of_processes():
    said = meet_all(free_port(), (2, 0), (4, 1))
    assert all("process 0 has --processes=2, process 1 has --processes=4" in line for line in said)


def test_a_number_given_twice():
    said = meet_all(free_port(), (3, 0), (3, 1), (3, 1))
    assert all("--process=1 was given twice" in line for line in said)


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as other:
        (said,) = meet_all(other.getsockname()[1], (2, 0), timeout_s=1)
    assert "choose another port" in said


def test_strangers_are_ignored():
    port = free_port()
    member = threading.Thread(target=meet, args=(f"127.0.0.1:{port}", 2, 0, 60))
    member.start()
    for noise in (b"GET / HTTP/1.1\r\n", b"[1, 2]\n", b"{}\n", b""):
        with connected(port) as stranger:
            stranger.sendall(noise)
    meet(f"127.0.0.1:{port}", 2, 1, 60)
    member.join()


def connected(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            pass


# ------------------------------------------------------------------------------------------- agreement

TALK = """
import sys
from pathlib import Path
from carr_jax import distributed as d
from carr_jax.records import InputError
from carr_jax.sharding import MESH_AXES, make_mesh

process, shared, own = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
d.initialize(*([f"127.0.0.1:{sys.argv[4]}", 2, process] if len(sys.argv) > 4 else []), timeout_s=60)

def said(function, *arguments):
    try:
        print("said:", function(*arguments))
    except InputError as error:
        print("said:", error)

said(d.is_first)
said(d.gather, "" if process else "zero \\N{GREEK SMALL LETTER OMEGA}")
said(d.stop_together, "")
said(d.stop_together, "one is ill" if process else "")
said(d.must_agree, {"pages": 1, "questions": 5})
said(d.must_agree, {"pages": process, "questions": 5})
said(d.must_share, shared)
said(d.must_share, own)
said(make_mesh, dict.fromkeys(MESH_AXES, 1))
"""


def talk(process, folder, by_slurm, port):
    """A process that was told who it is, or that sees a step of Slurm as srun describes it."""
    arguments = ["-c", TALK, process, folder, folder / "ab"[process]]
    if not by_slurm:
        return start([*arguments, port])
    step = {"JOB_ID": 1, "STEP_NODELIST": "localhost", "STEP_NUM_NODES": 2, "NTASKS": 2, "LOCALID": 0}
    names = {f"SLURM_{name}": str(value) for name, value in {**step, "PROCID": process}.items()}
    return start(arguments, **names, JAX_COORDINATOR_PORT=str(port))


@pytest.mark.parametrize("by_slurm", [False, True], ids=["flags", "slurm"])
def test_two_processes_agree_or_stop_with_the_same_words(by_slurm, tmp_path):
    port = free_port()
    own = [tmp_path / "a", tmp_path / "b"]
    for folder in own:
        folder.mkdir()
    results = finish([talk(i, tmp_path, by_slurm, port) for i in range(2)])
    assert [status for status, _ in results] == [0, 0], results
    first, second = (
        [line.removeprefix("said: ") for line in text.splitlines() if line.startswith("said: ")]
        for _, text in results
    )
    assert (first[0], second[0]) == ("True", "False")
    assert first[1] == second[1] == "['zero \N{GREEK SMALL LETTER OMEGA}', '']"
    assert first[2:7] == second[2:7]
    assert first[2:4] == ["None", "one is ill"]
    assert first[4] == "None" and "process 1 and process 0 have different pages;" in first[5]
    assert first[6] == "None"
    for line in (first[7], second[7]):
        assert "process 1 does not see what process 0 writes there" in line
    assert first[8] == second[8] == "config.mesh uses 1 of 2 devices; several processes need all"
    assert [list(folder.iterdir()) for folder in own] == [[], []], "nothing is left behind"
