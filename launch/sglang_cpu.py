"""Starts SGLang on a machine without a GPU; takes the options of `python -m sglang.launch_server`.

    .venv-sglang/bin/python launch/sglang_cpu.py --model-path=DIR --port=30000 ...

For tests and small trials only; `launch/serve_sglang.py` calls it where there is no CUDA.  SGLang's CPU path
needs nothing of its kernel package but imports it, and torchvision does not fit torch for CPUs: both get
stand-ins here.  SGLang's child processes import this file again, so they have them too.  Nothing of carr_jax is
used: it runs in SGLang's own environment.
"""

import os
import sys
import types

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "0")  # one core: more are slower on a busy machine


class _Kernels(types.ModuleType):
    """A package in which every name can be imported, and none can be called."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*args, **kwargs):
            raise NotImplementedError(f"sgl_kernel.{name} is not there on a CPU")

        return missing


sys.modules["sgl_kernel"] = _Kernels("sgl_kernel")
sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
