"""How a forward pass is computed: everything that changes memory and speed, and nothing of the result."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from jax.sharding import Mesh

from carr_jax.records import InputError

ATTENTION = ("blockwise", "splash", "cudnn")
GROUPED_MATMUL = ("tiled", "megablox", "tokamax")
_RUNS_ON = {"splash": "tpu", "megablox": "tpu", "cudnn": "gpu", "tokamax": "gpu"}  # the others run anywhere
REMAT = ("products", "full", "attention", "offload")

# What the recomputation policies go by: names given with `checkpoint_name` where the values are made.
LAYER_INPUT, ATTENTION_RESULT, PRODUCT = "layer input", "attention result", "product"


@dataclass(frozen=True)
class Compute:
    """Types, kernels, recomputation and layout of a pass over packed rows.

    dtype      float32 or bfloat16: type of activations and matrix products; parameters stay float32
    remat      what a layer keeps for the backward pass: "products" keeps what matrix products and attention
               made, and computes only norms, activations and such again; "full" keeps the layer's input only;
               "attention" keeps its input and the result of attention, which is not computed again; "offload"
               is "attention" with the inputs moved to host memory
    attention  blockwise (any device), splash (TPU) or cudnn (NVIDIA, one segment per row)
    experts    grouped matmul of the experts: tiled (any device), megablox (TPU) or tokamax (NVIDIA)
    mesh       where the arrays lie; with a context axis, rows must come in `context_order`
    interpret  run Pallas kernels in the interpreter, for tests without the hardware
    """

    dtype: str = "float32"
    remat: str = "products"
    attention: str = "blockwise"
    experts: str = "tiled"
    mesh: Mesh | None = None
    interpret: bool = False

    def __post_init__(self) -> None:
        choices = {"remat": REMAT, "attention": ATTENTION, "experts": GROUPED_MATMUL}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")


def kernels_for(platform: str, attention: str, experts: str) -> tuple[str, str]:
    """(attention, experts) with "auto" replaced by what a platform (tpu, gpu, cpu) can run.

    Raises InputError for a kernel that the platform cannot run, or that is not installed.
    """
    portable = (("attention", attention, "blockwise"), ("experts", experts, "tiled"))
    for field, kernel, other in portable:
        if _RUNS_ON.get(kernel, platform) != platform:
            raise InputError(
                f"config.model.{field}={kernel} does not run on {platform}; give --config.model.{field}={other}"
            )
    if experts == "tokamax" and importlib.util.find_spec("tokamax") is None:
        raise InputError("config.model.experts=tokamax is not installed: pip install 'carr_jax[kernels]'")
    best = {"tpu": ("splash", "megablox")}.get(platform, ("blockwise", "tiled"))
    return best[0] if attention == "auto" else attention, best[1] if experts == "auto" else experts
