"""Where a plan would run: chips that a compiler can be asked about although none is present.

For TPUs, libtpu brings the compiler and the layout of every slice.  For GPUs there is no compiler without a
GPU: CPU devices stand for theirs.  Nothing here imports jax before `devices` is called, because the environment
must be set first.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from carr_jax.records import InputError

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class Chip:
    """`memory_gib` is what a program may use of one chip, `tflops` the peak in bf16, dense."""

    kind: str  # tpu, gpu or cpu
    memory_gib: float
    tflops: float


# TPU memory as libtpu 0.0.42 states it when a program is too large.  GPU memory is 95 % of what nvidia-smi
# shows (XLA_PYTHON_CLIENT_MEM_FRACTION=0.95); the rest is the driver's and the libraries'.
CHIPS = {
    "v4": Chip("tpu", 30.75, 275),
    "v5e": Chip("tpu", 15.75, 197),
    "v5p": Chip("tpu", 95.74, 459),
    "v6e": Chip("tpu", 31.25, 918),
    "h100": Chip("gpu", 75.6, 989),
    "h200": Chip("gpu", 133.3, 989),
}
CPU_TFLOPS = 0.1  # of one core, in fp32; only so that a plan for the CPU has a number

_GRAMMAR = "v5p:4x4x4, v6e:8x8, v5e:4x4, v4:2x2x4, h200:8, h100:8, cpu or cpu:4"
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # nothing runs
    "TPU_SKIP_MDS_QUERY": "1",  # do not wait for the metadata server of a cloud machine
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two plans may compile at once
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclass(frozen=True)
class Topology:
    """`chips` chips of one kind, as the command line names them."""

    name: str
    chip: Chip
    chips: int

    @property
    def peak_flops(self) -> float:
        """FLOP/s of all chips together, bf16."""
        return self.chips * self.chip.tflops * 1e12


def parse(name: str) -> Topology:
    """Reads v5p:4x4x4, v6e:8x8, h200:8, cpu:4, ...  Raises InputError with the forms that are understood."""
    family, _, size = name.partition(":")
    if family == "cpu" and re.fullmatch(r"([1-9]\d*)?", size):
        count = int(size or 1)
        return Topology(name, Chip("cpu", _memory_of_this_machine() / count, CPU_TFLOPS), count)
    shape = r"[1-9]\d*" if getattr(CHIPS.get(family), "kind", "") == "gpu" else r"[1-9]\d*(x[1-9]\d*){1,2}"
    if family not in CHIPS or not re.fullmatch(shape, size):
        raise InputError(f"--topology={name} is not understood; give one like {_GRAMMAR}")
    return Topology(name, CHIPS[family], math.prod(int(n) for n in size.split("x")))


def prepare(topology: Topology) -> None:
    """Sets the environment that jax reads when it is imported.  Call it before anything imports jax."""
    os.environ.update(_ENVIRONMENT)
    if topology.chip.kind != "tpu":
        fake = f"--xla_force_host_platform_device_count={topology.chips}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {fake}".strip()


def devices(topology: Topology) -> Sequence[jax.Device]:
    """The devices to compile for, one for each chip.

    Raises InputError when libtpu is not installed or has no such slice.
    """
    import jax

    if topology.chip.kind != "tpu":
        return jax.devices("cpu")[: topology.chips]
    from jax.experimental import topologies

    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise InputError(
            f"--topology={topology.name} needs the TPU compiler: pip install 'carr_jax[plan]'"
        ) from None
    options = {"chip_config_name": "megacore"} if topology.name.startswith("v4") else {}  # one device per chip
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices
    except Exception as error:  # libtpu raises what it likes
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"--topology={topology.name}: libtpu has no such slice ({reason})") from None


def _memory_of_this_machine() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
