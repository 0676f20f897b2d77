"""Starts SGLang on a machine without a GPU; takes the options of `python -m sglang.launch_server`.

    .venv-sglang/bin/python launch/sglang_cpu.py --model-path=DIR --port=30000 ...

For tests and small trials only; `launch/serve_sglang.py` calls it where there is no CUDA.  SGLang's CPU path
needs little of its kernel package but imports it, and torchvision does not fit torch for CPUs: both get
stand-ins here.  SGLang's child processes import this file again, so they have them too.  Nothing of carr_jax is
used: it runs in SGLang's own environment.
"""

import os
import sys
import types

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "0")  # one core: more are slower on a busy machine
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling takes longer than all that is computed here

import torch
from torch import library


class Kernels(types.ModuleType):
    """A package in which every name can be imported, and none can be called."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*arguments, **options):
            raise NotImplementedError(f"sgl_kernel.{name} is not there on a CPU")

        return missing


@library.custom_op("sgl_kernel::murmur_hash32_cpu", mutates_args=())
def hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """A hash below 2^32 of each (seed, position, column), int64 [N, V]: what draws by seed are made of.

    Other numbers than SGLang's kernel gives on a GPU.
    """
    h = seed.to(torch.int64)[:, None] * 0x1E3779B97F4A7C15 + positions.to(torch.int64)[:, None]
    # The product wraps around; the shift must not keep the sign.
    for step in (columns.to(torch.int64)[None], 0, 0):
        h = (h ^ ((h >> 30) & 0x3FFFFFFFF)) * 0x3F58476D1CE4E5B9 + step
    return (h >> 32) & 0xFFFFFFFF


sys.modules["sgl_kernel"] = Kernels("sgl_kernel")
sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")

# --enable-deterministic-inference is for the seeds: kernels that do not depend on the batch need a GPU.
from sglang.srt import batch_invariant_ops

batch_invariant_ops.enable_batch_invariant_mode = lambda *arguments: None

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import add_deterministic_attention_backend_choices, prepare_server_args

    add_deterministic_attention_backend_choices(["torch_native"])
    run_server(prepare_server_args(sys.argv[1:]))
