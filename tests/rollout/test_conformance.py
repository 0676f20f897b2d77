"""The contract of `Engine`, one suite for every engine: embedded, the stand-in over HTTP, and any real server.

    pytest tests/rollout/test_conformance.py
    pytest tests/rollout/test_conformance.py --sglang-url=http://127.0.0.1:30000 --sglang-policy=DIR

A real server must serve DIR in float32 (see `make test-sglang`).  What it does not offer is skipped.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import other
from forward import chosen_experts, teacher_forced
from standin import SHAPE, PacedEngine, StandIn

from carr_jax.models.config import ModelConfig, from_hf_config
from carr_jax.records import Sampling
from carr_jax.rollout.engine import Engine, EngineError, WeightUpdateError
from carr_jax.rollout.fleet import PoolOptions
from carr_jax.rollout.pool import SGLangPool
from carr_jax.weights import load_params, save_params

pytestmark = pytest.mark.usefixtures("compile_quickly")
TOLERANCE = 1e-4
SEEN = {"max |log-prob difference|": 0.0}  # told at the end of a run against a real server


@dataclass
class Subject:
    """An engine under test with weights 0 of `folder`; weights 1 lie in `other_folder`.

    A turn of `long` tokens is still under way `moment` seconds after it began; `sampled()` tells how many
    tokens the engine has sampled, where that can be known.
    """

    engine: Engine
    config: ModelConfig
    folder: Path
    other_folder: Path
    context: int
    long: int
    moment: float = 0.0
    sampled: Callable[[], int] | None = None

    @property
    def params(self):
        return load_params(self.folder, self.config)

    @property
    def other_params(self):
        return load_params(self.other_folder, self.config)

    def prompt(self, seed, length=9):
        return np.random.default_rng(seed).integers(9, self.config.vocab_size, length).tolist()

    def sampling(self, max_tokens, stop_ids=(), seed=0, temperature=1.0):
        return Sampling(max_tokens, stop_ids, temperature, seed)

    async def begin(self, count=1):
        """`count` long turns, in the middle."""
        before = self.sampled() if self.sampled else 0
        turns = [
            asyncio.create_task(self.engine.generate(self.prompt(i), self.sampling(self.long, seed=i), f"s{i}"))
            for i in range(count)
        ]
        while (await self.engine.health())["active"] < count:
            await asyncio.sleep(0.001)
        while self.sampled and self.sampled() < before + 5 * count:
            await asyncio.sleep(0)
        await asyncio.sleep(self.moment)
        assert not any(turn.done() for turn in turns)
        return turns


PAIRS = [("embedded", "dense")]
PAIRS += [(f"standin-{mode}", "dense") for mode in ("keep", "resume", "old")] + [("standin-keep", "moe")]


def pytest_generate_tests(metafunc):
    if "subject" in metafunc.fixturenames:
        real = metafunc.config.getoption("--sglang-url")
        pairs = [("real-keep", "real"), ("real-resume", "real")] if real else PAIRS
        metafunc.parametrize("subject", pairs, ids="-".join, indirect=True)


@contextlib.asynccontextmanager
async def embedded(folders, model):
    config = from_hf_config(folders / model)
    engine = PacedEngine(load_params(folders / model, config), config, slots=8, max_length=96, **SHAPE)
    sampled = lambda: engine.counters["generated"]  # noqa: E731
    yield Subject(engine, config, folders / model, folders / f"{model}_other", 96, 70, sampled=sampled)


@contextlib.asynccontextmanager
async def stand_in(folders, model, mode):
    options = PoolOptions(in_flight="resume" if mode == "resume" else "keep")
    async with (
        StandIn(folders / model, spans=mode != "old") as server,
        SGLangPool([server.url], folders / model, 0, options) as pool,
    ):
        folder, other_folder = folders / model, folders / f"{model}_other"
        sampled = lambda: server.engine.counters["generated"]  # noqa: E731
        yield Subject(pool, server.config, folder, other_folder, pool.context, 70, sampled=sampled)


@contextlib.asynccontextmanager
async def real(folder, other_folder, url, mode):
    async with SGLangPool([url], folder, 0, PoolOptions(in_flight=mode)) as pool:
        yield Subject(pool, from_hf_config(folder), folder, other_folder, pool.context, 800, 0.3)


@pytest.fixture(scope="session")
def served(request, tmp_path_factory):
    """The folder of a real server, and one with other weights."""
    folder = Path(request.config.getoption("--sglang-policy"))
    config, changed = from_hf_config(folder), tmp_path_factory.mktemp("other") / "policy"
    save_params(changed, other(load_params(folder, config)), config)
    return folder, changed


@pytest.fixture
def subject(request):
    """Call it with a scenario: a coroutine function of one Subject."""
    engine, model = request.param
    engine, _, mode = engine.partition("-")

    def opened():
        if engine == "real":
            return real(*request.getfixturevalue("served"), request.config.getoption("--sglang-url"), mode)
        folders = request.getfixturevalue("folders")
        return stand_in(folders, model, mode) if engine == "standin" else embedded(folders, model)

    async def play(scenario):
        async with opened() as s, asyncio.timeout(120):
            return await scenario(s)

    return lambda scenario: asyncio.run(play(scenario))


def agrees(s: Subject, params: Any, ids, logprobs, start, temperature=1.0):
    """The engine's log-probs of ids[start:] are those of the trainer's forward pass."""
    exact = teacher_forced(params, s.config, ids, temperature)[start - 1 :]
    away = float(np.abs(exact[: len(logprobs)] - np.asarray(logprobs)).max())
    SEEN["max |log-prob difference|"] = max(SEEN["max |log-prob difference|"], away)
    assert away < TOLERANCE


@pytest.fixture(scope="module", autouse=True)
def tell_what_was_seen(request):
    yield
    if request.config.getoption("--sglang-url"):
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print("\nseen:", json.dumps(SEEN))


# ------------------------------------------------------------------------------------------------ sampling


def test_finish_reasons_and_token_counts(subject):
    async def scenario(s):
        length = await s.engine.generate(s.prompt(0), s.sampling(5), "b")
        end = await s.engine.generate(s.prompt(0, s.context - 3), s.sampling(50), "c")
        last = await s.engine.generate(s.prompt(0, s.context - 1), s.sampling(50), "d")
        return length, end, last

    length, end, last = subject(scenario)
    assert (length.finish, len(length.ids), len(length.logprobs), length.versions) == ("length", 5, 5, (0,) * 5)
    assert (end.finish, len(end.ids)) == ("length", 3)
    assert (last.finish, len(last.ids)) == ("length", 1)


def test_a_stop_id_ends_the_turn_and_is_its_last_id(subject):
    async def scenario(s):
        stops = tuple(range(0, s.config.vocab_size, 3))
        turns = [s.engine.generate(s.prompt(i), s.sampling(60, stops, seed=i), f"s{i}") for i in range(4)]
        return stops, await asyncio.gather(*turns)

    stops, turns = subject(scenario)
    for turn in turns:
        assert turn.finish == "stop" and turn.ids[-1] in stops and not set(turn.ids[:-1]) & set(stops)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_the_trainers_over_turns_with_observations(subject, temperature):
    async def scenario(s):
        ids, params = s.prompt(1), s.params
        for turn in range(3):
            start = len(ids)
            g = await s.engine.generate(ids, s.sampling(12, seed=turn, temperature=temperature), "a")
            assert np.isfinite(g.logprobs).all()
            ids = [*ids, *g.ids, *s.prompt(turn, 5)]
            agrees(s, params, ids, g.logprobs, start, temperature)
        await s.engine.release("a")

    subject(scenario)


def test_sessions_run_together_and_differ(subject):
    async def scenario(s):
        ids = s.prompt(2, 20)
        turns = [s.engine.generate(ids, s.sampling(12, seed=i), f"s{i}") for i in range(8)]
        together = await asyncio.gather(*turns)
        for g in together:
            agrees(s, s.params, [*ids, *g.ids], g.logprobs, len(ids))
        return {g.ids for g in together}

    assert len(subject(scenario)) == 8


def test_a_seed_gives_the_same_tokens_again(subject):
    async def scenario(s):
        if not (await s.engine.health())["seeded"]:
            pytest.skip("the server knows no seeds")
        seeds = {"a": 1, "b": 1, "c": 2}
        turns = [s.engine.generate(s.prompt(2), s.sampling(12, seed=seeds[x]), x) for x in seeds]
        return [g.ids for g in await asyncio.gather(*turns)]

    first, again, another = subject(scenario)
    assert first == again != another


def test_the_experts_of_every_position_are_those_of_the_forward_pass(subject):
    async def scenario(s):
        ids, rows = s.prompt(3), []
        for turn in range(2):
            g = await s.engine.generate(ids, s.sampling(8, seed=turn), "a")
            if g.routes is None:
                pytest.skip("the engine does not report experts")
            ids = [*ids, *g.ids]
            assert len(g.routes) == len(ids) - 1 and g.routes.dtype == np.int16
            rows = [*rows, *g.routes[len(rows) :]]  # earlier ones need not be told again
            ids += s.prompt(turn, 4)
        expected = chosen_experts(s.params, s.config, ids)[: len(rows)]
        np.testing.assert_array_equal(np.sort(rows), np.sort(expected))

    subject(scenario)


# ------------------------------------------------------------------------------------------------ control


def test_abort_returns_what_is_there(subject):
    async def scenario(s):
        (turn,) = await s.begin()
        await s.engine.abort("s0")
        await s.engine.abort("nobody")
        g = await turn
        agrees(s, s.params, [*s.prompt(0), *g.ids], g.logprobs, 9)
        again = await s.engine.generate([*s.prompt(0), *g.ids], s.sampling(3), "s0")
        return g, again, s.long

    g, again, long = subject(scenario)
    assert g.finish == "abort" and 0 < len(g.ids) == len(g.logprobs) == len(g.versions) < long
    assert (again.finish, len(again.ids)) == ("length", 3)


def test_release_ends_the_turn_and_unknown_sessions_are_no_error(subject):
    async def scenario(s):
        (turn,) = await s.begin()
        await s.engine.release("s0")
        await s.engine.release("nobody")
        return await turn, await s.engine.health()

    turn, health = subject(scenario)
    assert turn.finish == "abort" and (health["active"], health["waiting"]) == (0, 0)


def test_pause_holds_turns_and_resume_lets_them_go(subject):
    async def scenario(s):
        (turn,) = await s.begin()
        await s.engine.pause()
        late = asyncio.create_task(s.engine.generate(s.prompt(5), s.sampling(4), "late"))
        await asyncio.sleep(max(2 * s.moment, 0.1))
        held = await s.engine.health()
        assert not turn.done() and not late.done()
        await s.engine.resume()
        return held, await turn, await late, await s.engine.health(), s.long

    held, turn, late, after, long = subject(scenario)
    assert held["status"] == "paused" and held["active"] + held["waiting"] == 2
    assert (turn.finish, len(turn.ids), set(turn.versions)) == ("length", long, {0})
    assert (late.finish, len(late.ids)) == ("length", 4)
    assert (after["status"], after["active"], after["waiting"]) == ("ok", 0, 0)


def test_a_paused_turn_can_be_aborted(subject):
    async def scenario(s):
        (turn,) = await s.begin()
        await s.engine.pause()
        await s.engine.abort("s0")
        g = await turn
        await s.engine.resume()
        return g, await s.engine.generate(s.prompt(1), s.sampling(3), "next")

    turn, after = subject(scenario)
    assert turn.finish == "abort" and len(after.ids) == 3


# ------------------------------------------------------------------------------------------------ weights


def test_an_update_in_the_middle_of_turns_loses_nothing_and_every_token_has_its_version(subject):
    async def scenario(s):
        turns = await s.begin(4)
        await s.engine.update_weights(s.other_folder, 1)
        old, new = s.params, s.other_params
        for i, g in enumerate(await asyncio.gather(*turns)):
            assert (g.finish, len(g.ids)) == ("length", s.long)
            assert list(g.versions) == sorted(g.versions) and set(g.versions) == {0, 1}
            ids, n = [*s.prompt(i), *g.ids], g.versions.count(0)
            agrees(s, old, ids[: 9 + n], g.logprobs[:n], 9)
            agrees(s, new, ids, g.logprobs[n:], 9 + n)
        return await s.engine.health()

    health = subject(scenario)
    assert health["version"] == 1 and health["counters"].get("tokens_lost", 0) == 0


def test_with_seeds_an_update_to_the_same_weights_changes_no_token(subject):
    """Neither prefilling again nor resuming from the longer prefix may show in what is sampled."""

    async def scenario(s):
        if not (await s.engine.health())["seeded"]:
            pytest.skip("the server knows no seeds")
        turns = await s.begin(2)
        await s.engine.update_weights(s.folder, 1)
        updated = await asyncio.gather(*turns)
        undisturbed = await asyncio.gather(*await s.begin(2))
        return [g.ids for g in updated], [g.ids for g in undisturbed]

    updated, undisturbed = subject(scenario)
    assert updated == undisturbed


def test_after_an_update_cached_prefixes_of_the_old_weights_are_not_used(subject):
    async def scenario(s):
        ids = s.prompt(4, 24)
        before = await s.engine.generate(ids, s.sampling(6), "a")
        agrees(s, s.params, [*ids, *before.ids], before.logprobs, 24)
        await s.engine.update_weights(s.other_folder, 1)
        ids = [*ids, *before.ids]
        after = await s.engine.generate(ids, s.sampling(6), "a")
        agrees(s, s.other_params, [*ids, *after.ids], after.logprobs, 30)
        return after.versions

    assert subject(scenario) == (1,) * 6


def test_a_refused_update_changes_nothing(subject):
    async def scenario(s):
        turns = await s.begin(2)
        with pytest.raises(WeightUpdateError):
            await s.engine.update_weights(s.folder.parent / "not_there", 1)
        for i, g in enumerate(await asyncio.gather(*turns)):
            assert (g.finish, len(g.ids), set(g.versions)) == ("length", s.long, {0})
            agrees(s, s.params, [*s.prompt(i), *g.ids], g.logprobs, 9)
        await s.engine.update_weights(s.other_folder, 1)
        after = await s.engine.generate(s.prompt(7), s.sampling(6), "a")
        agrees(s, s.other_params, [*s.prompt(7), *after.ids], after.logprobs, 9)
        return after.versions

    assert subject(scenario) == (1,) * 6


# ------------------------------------------------------------------------------------------------ errors


def test_bad_requests_are_engine_errors(subject):
    async def scenario(s):
        size = s.config.vocab_size
        for ids, named in (([], "0 ids"), ([1] * s.context, f"{s.context} ids"), ([1, size], "vocabulary")):
            with pytest.raises(EngineError, match=named):
                await s.engine.generate(ids, s.sampling(3), "a")
        with pytest.raises(EngineError, match="vocabulary"):
            await s.engine.generate([-1], s.sampling(3), "a")
        (turn,) = await s.begin()
        with pytest.raises(EngineError, match="in flight"):
            await s.engine.generate(s.prompt(0), s.sampling(3), "s0")
        return dataclasses.astuple(await turn)[3]

    assert subject(scenario) == "length"


def test_health_says_what_the_scheduler_needs(subject):
    async def scenario(s):
        return await s.engine.health()

    health = subject(scenario)
    assert (health["status"], health["version"], health["active"], health["waiting"]) == ("ok", 0, 0, 0)
    assert isinstance(health["seeded"], bool)
