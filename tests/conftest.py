"""Tests run on the CPU, with four devices so that sharding is real; must happen before jax is imported.

Most of their time is compiling, so that is done without optimisation, and what took a while is kept in
`.pytest_cache` for other tests and processes, and for the next run.
"""

import os
from pathlib import Path

COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "compiled"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(1 << 30))  # bytes
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")


def pytest_collection_modifyitems(items):
    """Whole runs first: of two workers none is left alone with them in the end."""
    items.sort(key=lambda item: "loops" not in item.path.parts)
