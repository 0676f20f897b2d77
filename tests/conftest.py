"""Tests run on the CPU, with four devices so that sharding is real; must happen before jax is imported."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")


def pytest_collection_modifyitems(items):
    """Whole runs first: of two workers none is left alone with them in the end."""
    items.sort(key=lambda item: "loops" not in item.path.parts)
