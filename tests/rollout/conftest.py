"""Options that run the conformance suite against a real server, and the policies that the tests serve."""

import sys
from pathlib import Path

import jax
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "models")]
from tiny_models import DENSE, MOE, params_of

from carr_jax.weights import save_params


def pytest_addoption(parser):
    parser.addoption("--sglang-url", help="a running SGLang server for the conformance suite")
    parser.addoption("--sglang-policy", help="the folder that it serves")


def other(params):
    """Weights that give clearly other probabilities."""
    return jax.tree.map(lambda x: x * 0.9, params)


@pytest.fixture(scope="module")
def compile_quickly():
    """For modules whose programs are tiny: compiling them takes most of their time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of the tiny policies: dense, dense_other, moe, moe_other."""
    root = tmp_path_factory.mktemp("policies")
    for name, config in (("dense", DENSE), ("moe", MOE)):
        save_params(root / name, params_of(config), config)
        save_params(root / f"{name}_other", other(params_of(config)), config)
    return root
