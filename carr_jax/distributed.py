"""Several processes that train together: how they find each other, and how they agree.

Each process runs the same program on the same data and holds its own part of every array.  What all see
(metrics, the policy folder) is written by the first one.  Whatever gathers or waits here must be called by all
processes, in the same order.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from carr_jax.records import InputError

TIMEOUT_S = 300.0  # how long the processes wait for each other at the start
_SHUTDOWN_S = 60  # and at the end
_PAUSE_S = 0.5


def initialize(
    coordinator: str = "", processes: int = 0, process: int = 0, timeout_s: float = TIMEOUT_S
) -> None:
    """Joins the other processes; before any computation of jax.

    With a `coordinator` ("host:port", where process 0 runs) by the given numbers, else by what Slurm or a TPU
    pod says about itself.  Raises InputError when the processes do not come together within `timeout_s`.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Else SIGTERM would be noted and not end the process; a run may be killed at any instant.
    jax.config.update("jax_enable_preemption_service", False)
    common = {"initialization_timeout": int(timeout_s), "shutdown_timeout_seconds": _SHUTDOWN_S}
    if coordinator:
        meet(coordinator, processes, process, timeout_s)
        jax.distributed.initialize(
            coordinator, processes, process, cluster_detection_method="deactivate", **common
        )
        return
    try:
        jax.distributed.initialize(local_device_ids=slurm_devices(os.environ), **common)
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"--distributed: this is no Slurm step and no TPU pod that jax knows ({_one_line(error)}); "
            "give --coordinator, --processes and --process"
        ) from None


def slurm_devices(environment: Mapping[str, str]) -> list[int] | None:
    """All GPUs of the node when Slurm runs one process per node; None leaves the choice to jax.

    jax alone would give every process of a Slurm step a single GPU.
    """
    if environment.get("SLURM_NTASKS", "") != environment.get("SLURM_STEP_NUM_NODES"):
        return None
    return list(range(int(environment.get("SLURM_GPUS_ON_NODE", "0")))) or None


def is_first() -> bool:
    """Whether this process writes what all share; true when it is alone."""
    return jax.process_index() == 0


def wait_for_all(reason: str) -> None:
    """Returns when every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(reason)


def gather(text: str) -> list[str]:
    """The text of every process, in their order."""
    if jax.process_count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size))
    padded = np.zeros(max(1, sizes.max()), np.uint8)
    padded[: data.size] = data
    rows = multihost_utils.process_allgather(padded)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def share(arrays: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """The arrays of the first process, in all; what the others pass is not looked at."""
    if jax.process_count() == 1:
        return dict(arrays)
    described = {k: (x.shape, x.dtype.name) for k, x in arrays.items()} if is_first() else {}
    described = json.loads(gather(json.dumps(described))[0])
    if not is_first():
        arrays = {k: np.zeros(shape, dtype) for k, (shape, dtype) in described.items()}
    return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(dict(arrays)))


def stop_together(problem: str) -> None:
    """Raises the same InputError in all processes when any has a problem; "" means none."""
    if found := sorted(set(gather(problem)) - {""}):
        raise InputError("; ".join(found))


def must_agree(facts: Mapping[str, object]) -> None:
    """Raises InputError in all processes when one has other facts than the first, so would train otherwise."""
    first, *others = [json.loads(text) for text in gather(json.dumps(facts, sort_keys=True))]
    for index, other in enumerate(others, 1):
        if different := [name for name in first if first[name] != other[name]]:
            raise InputError(
                f"process {index} and process 0 have different {', '.join(different)}; "
                "give every host the same code, configuration and files"
            )


def must_share(folder: Path) -> None:
    """Raises InputError in all processes when one does not see what the first writes into `folder`."""
    if jax.process_count() == 1:
        return
    name = gather(f".shared_{os.getpid()}_{time.time_ns()}")[0]
    if is_first():
        (folder / name).touch()
    wait_for_all("shared folder: written")
    seen = gather("yes" if (folder / name).exists() else "")
    if is_first():
        (folder / name).unlink()
    if blind := [str(i) for i, answer in enumerate(seen) if not answer]:
        raise InputError(
            f"--workdir={folder}: process {', '.join(blind)} does not see what process 0 writes there; "
            "choose a folder on storage that all hosts share"
        )


def pick(stack: Any, index: tuple[int, ...]) -> Any:
    """`stack[index]`; when the stack is spread over a mesh, a copy on each of its devices.

    Takes the memory of one tensor only, and compiles once for each shape, because the index is traced.
    """
    if not isinstance(stack, jax.Array):
        return stack[index]
    spread = isinstance(stack.sharding, NamedSharding)
    everywhere = NamedSharding(stack.sharding.mesh, PartitionSpec()) if spread else None
    return _picker(everywhere)(stack, np.array(index, np.int32))


@functools.cache
def _picker(sharding: NamedSharding | None) -> Callable[[jax.Array, np.ndarray], jax.Array]:
    def picked(stack: jax.Array, index: jax.Array) -> jax.Array:
        for i in range(index.size):
            stack = jax.lax.dynamic_index_in_dim(stack, index[i], keepdims=False)
        return stack

    return jax.jit(picked, out_shardings=sharding)


def leave(status: int) -> None:
    """Ends this process at once, without waiting for the others, which jax then stops too.

    The first goes last: when it is gone, the others are stopped before they could say why they end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if is_first():
        time.sleep(2)
    os._exit(status)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


# ------------------------------------------------------------------------------------------- the meeting
#
# jax ends the whole process, with a stack trace, when a coordinator cannot be reached, when somebody is missing
# or when the port is taken.  So the processes first meet on the coordinator's port, and say who they are.


def meet(coordinator: str, processes: int, process: int, timeout_s: float) -> None:
    """Returns when all processes have met.  Raises InputError that says who is missing or does not fit."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + timeout_s
    if process:
        _knock(host, int(port), {"processes": processes, "process": process}, deadline, timeout_s)
    else:
        _receive(int(port), processes, deadline, timeout_s)


def _receive(port: int, processes: int, deadline: float, timeout_s: float) -> None:
    """The first process: waits until each other has knocked, then answers all of them."""
    guests: dict[int, socket.socket] = {}
    problem = ""
    try:
        with _listen(port) as server:
            while len(guests) < processes - 1 and not problem:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    guest, _ = server.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, processes)) - set(guests))
                    problem = f"process {', '.join(map(str, missing))} did not come within {timeout_s:g} s"
                    break
                problem = _admit(guest, processes, guests)
    finally:
        for guest in guests.values():
            _answer(guest, problem)
    if problem:
        raise InputError(f"the processes did not come together: {problem}")


def _listen(port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise InputError(
            f"--coordinator: port {port} cannot be used on this host ({error.strerror}); choose another port"
        ) from None


def _admit(guest: socket.socket, processes: int, guests: dict[int, socket.socket]) -> str:
    """Adds a guest by its number; returns what is wrong, "" when nothing is or when it was a stranger."""
    guest.settimeout(5)
    try:
        hello = json.loads(guest.makefile().readline())
        number, count = hello["process"], hello["processes"]
    except (OSError, ValueError, KeyError, TypeError):
        guest.close()
        return ""
    problem = ""
    if count != processes:
        problem = f"process 0 has --processes={processes}, process {number} has --processes={count}"
    if old := guests.pop(number, None):
        problem = problem or (f"--process={number} was given twice" if _is_there(old) else "")
        _answer(old, problem)
    guests[number] = guest
    return problem


def _is_there(guest: socket.socket) -> bool:
    """Whether the other end still waits."""
    guest.setblocking(False)
    try:
        return guest.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _answer(guest: socket.socket, problem: str) -> None:
    with contextlib.suppress(OSError), guest:
        guest.settimeout(5)
        guest.sendall((problem or "go").encode() + b"\n")
        guest.recv(1)  # the guest closes first, so that the port is free at once


def _knock(host: str, port: int, hello: Mapping[str, int], deadline: float, timeout_s: float) -> None:
    """Any other process: says who it is until process 0 answers."""
    reason = "no answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), timeout=max(0.01, deadline - time.monotonic())) as door:
                door.sendall(json.dumps(hello).encode() + b"\n")
                answer = door.makefile().readline().strip()
        except OSError as error:
            reason, answer = error.strerror or str(error), ""
        if answer == "go":
            return
        if answer:
            raise InputError(f"the processes did not come together: {answer}")
        time.sleep(min(_PAUSE_S, max(0.0, deadline - time.monotonic())))
    raise InputError(
        f"--coordinator={host}:{port} could not be reached within {timeout_s:g} s ({reason}); "
        "does process 0 run there, and may this host connect to it?"
    )
