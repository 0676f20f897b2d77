"""Names of topologies, and the compile-only devices behind them."""

import importlib.util

import pytest

from carr_jax.planning import topology
from carr_jax.records import InputError


@pytest.mark.parametrize(
    ("name", "chips", "memory", "tflops"),
    [
        ("v5p:4x4x4", 64, 95.74, 459),
        ("v6e:8x8", 64, 31.25, 918),
        ("v5e:2x2", 4, 15.75, 197),
        ("v4:2x2x4", 16, 30.75, 275),
        ("h200:8", 8, 133.3, 989),
        ("h100:16", 16, 75.6, 989),
    ],
)
def test_parse(name, chips, memory, tflops):
    found = topology.parse(name)
    assert (found.chips, found.chip.memory_gib, found.chip.tflops) == (chips, memory, tflops)
    assert found.peak_flops == chips * tflops * 1e12


def test_fake_devices_share_the_memory_of_this_machine():
    one, four = topology.parse("cpu"), topology.parse("cpu:4")
    assert (one.chips, four.chips) == (1, 4)
    assert four.chip.memory_gib == pytest.approx(one.chip.memory_gib / 4)


@pytest.mark.parametrize(
    "name", ["", "v5p", "v5p:64", "v6e:8x", "v6e:0x8", "h200:2x4", "h200", "tpu:8", "cpu:0", "cpu:a"]
)
def test_other_names_are_one_clear_line(name):
    with pytest.raises(InputError, match="is not understood; give one like v5p:4x4x4"):
        topology.parse(name)


def test_the_environment(monkeypatch):
    monkeypatch.setattr(topology.os, "environ", {"XLA_FLAGS": "--other"})
    topology.prepare(topology.parse("h200:8"))
    assert topology.os.environ["XLA_FLAGS"] == "--other --xla_force_host_platform_device_count=8"
    assert topology.os.environ["JAX_PLATFORMS"] == "cpu"
    assert topology.os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "libtpu", None)
    with pytest.raises(InputError, match=r"pip install 'carr_jax\[plan\]'"):
        topology.devices(topology.parse("v6e:2x2"))


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (the extra `plan`)"
)
def test_devices_of_a_slice(monkeypatch):
    for name, value in topology._ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert len(topology.devices(topology.parse("v4:2x2x4"))) == 16
    assert len(topology.devices(topology.parse("v6e:4x4"))) == 16
    with pytest.raises(InputError, match="libtpu has no such slice"):
        topology.devices(topology.parse("v6e:3x5"))
