"""The ratio at step 0: 1 when engine and trainer agree, and one clear line when they do not (P14, P15)."""

import asyncio
import dataclasses
import functools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from carr_jax.agreement import Agreement, check_agreement
from carr_jax.learning.batch import pack
from carr_jax.learning.compare import make_comparison
from carr_jax.learning.step import LearnConfig, place
from carr_jax.models.compute import Compute
from carr_jax.models.qwen3 import param_shardings
from carr_jax.records import Sampling
from carr_jax.rollout.embedded import EmbeddedEngine
from carr_jax.sharding import MESH_AXES, make_mesh

sys.path.insert(0, str(Path(__file__).parent / "models"))
from tiny_models import DENSE, MOE, params_of

PROMPTS = [np.random.default_rng(i).integers(9, 61, 5 + i).tolist() for i in range(4)]


def engine_of(config, params=None):
    shape = {
        "slots": 4,
        "max_length": 64,
        "prefill_rows": 2,
        "prefill_chunk": 8,
        "decode_steps": 4,
        "window": 32,
    }
    return EmbeddedEngine(params_of(config) if params is None else params, config, **shape)


@functools.cache
def mesh():
    return make_mesh(dict.fromkeys(MESH_AXES, 1) | dict(fsdp=2, context=2))


@functools.cache
def comparison(config, learn):
    return make_comparison(config, learn)


def check(engine, temperature=1.0, config=DENSE, dtype="float32", on_mesh=False):
    """The agreement of an engine with the trainer of `params_of(config)` at `temperature`."""
    compute = Compute(dtype=dtype, mesh=mesh() if on_mesh else None)
    learn = LearnConfig(temperature=temperature, logprob_chunk=16, compute=compute)
    params = params_of(config)
    if on_mesh:
        params = jax.device_put(params, param_shardings(config, mesh()))

    def compare(examples):
        batch = pack(examples, 64, 2, 2, "global_tokens")
        return comparison(config, learn)(params, place(batch, mesh()) if on_mesh else batch)

    sampling = Sampling(max_tokens=12, stop_ids=(7, 8), temperature=temperature)
    return asyncio.run(check_agreement(engine, PROMPTS, sampling, compare))


class Changed:
    """The embedded engine with other samplings or replies."""

    def __init__(self, engine, sampling=lambda s: s, reply=lambda g: g):
        self._engine, self._sampling, self._reply = engine, sampling, reply

    async def generate(self, ids, sampling, session):
        return self._reply(await self._engine.generate(ids, self._sampling(sampling), session))

    async def release(self, session):
        await self._engine.release(session)


@pytest.mark.parametrize(
    ("config", "temperature", "on_mesh"),
    [(DENSE, 1.0, False), (DENSE, 0.7, False), (MOE, 0.7, False), (DENSE, 1.0, True)],
    ids=["dense", "cooler", "moe", "four devices"],
)
def test_the_same_policy_agrees(config, temperature, on_mesh):
    found = check(engine_of(config), temperature, config, on_mesh=on_mesh)
    assert found.mean_abs < 1e-5 and found.max_abs < 1e-4 and found.ratio == pytest.approx(1, abs=1e-5)
    assert 16 < found.tokens == found.sampled <= 96  # two turns after each prompt
    assert found.problem(1e-4) == ""


def test_an_engine_that_ignores_the_temperature():
    engine = Changed(engine_of(DENSE), lambda s: dataclasses.replace(s, temperature=1.0))
    found = check(engine, 0.7)
    assert found.mean_abs > 0.1
    message = found.problem(0.02)
    assert "apply temperature 0.7" in message and "the limit is 0.02" in message and "\n" not in message


def test_an_engine_with_other_weights():
    other = jax.tree.map(lambda x: x * 1.3, params_of(DENSE))
    assert check(engine_of(DENSE, other)).mean_abs > 0.1


def test_another_dtype_is_seen_but_small():
    assert 1e-4 < check(engine_of(DENSE), dtype="bfloat16").mean_abs < 0.1


def test_truncated_sampling_shows_in_the_mean_ratio():
    """Log-probs renormalised over kept sets of 0.8: the ratio is 0.8 on every token."""
    higher = Changed(
        engine_of(DENSE),
        reply=lambda g: dataclasses.replace(g, logprobs=tuple(x - np.log(0.8) for x in g.logprobs)),
    )
    found = check(higher)
    assert found.ratio == pytest.approx(0.8, abs=1e-4) and "mean ratio is 0.800" in found.problem(0.02)


def test_missing_logprobs_are_left_out_and_none_at_all_is_a_problem():
    some = Changed(
        engine_of(DENSE), reply=lambda g: dataclasses.replace(g, logprobs=(*g.logprobs[:-1], float("nan")))
    )
    found = check(some)
    assert found.tokens == found.sampled - 2 * len(PROMPTS) and found.mean_abs < 1e-5
    none = Changed(
        engine_of(DENSE), reply=lambda g: dataclasses.replace(g, logprobs=(float("nan"),) * len(g.ids))
    )
    found = check(none)
    assert found.tokens == 0 < found.sampled and "no log-prob for any of" in found.problem(0.02)


def test_nan_is_never_agreement():
    assert Agreement(float("nan"), float("nan"), 1.0, 10, 10, 1.0).problem(0.02)


def test_a_broken_contract_is_named():
    short = Changed(engine_of(DENSE), reply=lambda g: dataclasses.replace(g, logprobs=g.logprobs[:-1]))
    with pytest.raises(ValueError, match="other numbers of log-probs"):
        check(short)
