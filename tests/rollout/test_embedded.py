import asyncio
import dataclasses
import functools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from carr_jax.models.qwen3 import head_matrix, hidden_states
from carr_jax.records import Sampling
from carr_jax.rollout.decode import sample
from carr_jax.rollout.embedded import EmbeddedEngine
from carr_jax.rollout.engine import EngineError

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from tiny_models import DENSE, MOE, params_of, row

SHAPE = {"max_length": 64, "prefill_rows": 2, "prefill_chunk": 8, "decode_steps": 4, "window": 32}
STOP = (7, 8)


def engine_of(config=DENSE, **options):
    return EmbeddedEngine(params_of(config), config, **{"slots": 8} | SHAPE | options)


def sampling(seed=0, max_tokens=6, stop_ids=STOP, temperature=1.0):
    return Sampling(max_tokens=max_tokens, stop_ids=stop_ids, temperature=temperature, seed=seed)


def prompt(seed, length=9):
    return np.random.default_rng(seed).integers(9, 61, length).tolist()


async def episode(engine, i, turns=3, temperature=1.0):
    """A session with observations between the turns; returns the buffer and its generations."""
    ids, generations = prompt(i // 4), []
    for turn in range(turns):
        for _ in range(i % 3):  # tools take unequal time
            await asyncio.sleep(0)
        generations.append(await engine.generate(ids, sampling(i, temperature=temperature), f"s{i}"))
        ids = [*ids, *generations[-1].ids, *prompt(100 * i + turn, 5)]
    await engine.release(f"s{i}")
    return ids, generations


def play(engine, sessions, **options):
    async def all_of_them():
        return await asyncio.gather(*(episode(engine, i, **options) for i in sessions))

    return asyncio.run(all_of_them())


def tokens(results):
    return [[g.ids for g in generations] for _, generations in results]


@functools.cache
def reference():
    """Eight sessions, one after the other, in an engine with a single slot."""
    engine = engine_of(slots=1)
    return [play(engine, [i])[0] for i in range(8)]


forward = jax.jit(hidden_states, static_argnames="config")


def teacher_forced(config, ids, temperature=1.0):
    """log p(ids[t + 1] | ids[: t + 1]) for every t by the trainer's forward pass, float64 softmax."""
    hidden = np.asarray(forward(params_of(config), config, *row(ids, 64))[0, : len(ids)], np.float64)
    logits = hidden @ np.asarray(head_matrix(params_of(config), config), np.float64) / temperature
    top = logits.max(-1, keepdims=True)
    logprobs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return logprobs[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize(
    ("config", "temperature"), [(DENSE, 1.0), (DENSE, 0.7), (MOE, 1.0)], ids=["dense", "cooler", "moe"]
)
def test_logprobs_equal_the_trainers_over_turns_with_observations(config, temperature):
    engine = engine_of(config)
    for i, (ids, generations) in enumerate(play(engine, range(4), temperature=temperature)):
        exact, at = teacher_forced(config, ids, temperature), len(prompt(i // 4))
        for g in generations:
            n = len(g.ids)
            np.testing.assert_allclose(g.logprobs, exact[at - 1 : at - 1 + n], atol=2e-5)
            assert tuple(ids[at : at + n]) == g.ids
            at += n + 5


@pytest.mark.parametrize("slots", [8, 1])
def test_tokens_do_not_depend_on_concurrency_or_slots(slots):
    alone = reference()
    engine = engine_of(slots=slots)
    together = play(engine, range(8))
    assert tokens(together) == tokens(alone)
    for (_, a), (_, b) in zip(together, alone, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(x.logprobs, y.logprobs, atol=1e-5)
    assert tokens(play(engine, reversed(range(8)))) == tokens(alone)[::-1]  # now with foreign caches around


def test_a_session_prefills_its_suffix_only_and_siblings_share_the_prompt():
    engine = engine_of()

    async def scenario():
        ids = prompt(1, 24)
        first = await engine.generate(ids, sampling(1), "a")
        assert engine.counters["prefilled"] == 23
        ids = [*ids, *first.ids, *prompt(2, 5)]
        await engine.generate(ids, sampling(1), "a")
        # Neither the last sampled token nor the last of the observation: the next decode step takes that one.
        assert engine.counters["prefilled"] == 23 + 5
        await asyncio.gather(*(engine.generate(ids, sampling(i), f"sibling{i}") for i in range(3)))
        assert engine.counters["prefilled"] == 23 + 5 and engine.counters["copied"] == 3 * (len(ids) - 1)

    asyncio.run(scenario())


def test_siblings_that_arrive_together_share_their_prompt():
    engine, ids = engine_of(), prompt(1, 30)

    async def scenario():
        return await asyncio.gather(*(engine.generate(ids, sampling(i), f"s{i}") for i in range(6)))

    different = {g.ids for g in asyncio.run(scenario())}
    # They copy once 16 tokens are there to copy; the last 13 of the 29 are not worth waiting for.
    assert engine.counters["prefilled"] == 29 + 5 * 13 and engine.counters["copied"] == 5 * 16
    assert len(different) == 6  # seeds differ


def test_a_session_that_changes_its_past_is_prefilled_again():
    engine, ids = engine_of(), prompt(1, 20)

    async def scenario():
        await engine.generate(ids, sampling(1), "a")
        other = [*ids[:4], 9 if ids[4] != 9 else 10, *ids[5:]]
        return await engine.generate(other, sampling(1), "a"), await engine.generate(other, sampling(1), "b")

    changed, fresh = asyncio.run(scenario())
    assert changed.ids == fresh.ids


def test_finish_reasons_and_budgets():
    everything = tuple(range(61))

    async def scenario():
        engine = engine_of()
        stop = await engine.generate(prompt(0), sampling(stop_ids=everything), "a")
        length = await engine.generate(prompt(0), sampling(stop_ids=(), max_tokens=5), "b")
        end = await engine.generate(prompt(0, 61), sampling(stop_ids=(), max_tokens=50), "c")
        last = await engine.generate(prompt(0, 63), sampling(stop_ids=(), max_tokens=50), "d")
        return stop, length, end, last

    stop, length, end, last = asyncio.run(scenario())
    assert (stop.finish, len(stop.ids), stop.ids[-1] in everything) == ("stop", 1, True)
    assert (length.finish, len(length.ids), len(length.logprobs), length.versions) == ("length", 5, 5, (0,) * 5)
    assert (end.finish, len(end.ids)) == ("length", 3)
    assert (last.finish, len(last.ids)) == ("length", 1)


def test_weight_update_in_the_middle_of_a_turn_shows_in_versions_and_invalidates_caches():
    other = jax.tree.map(lambda x: x * 0.9, params_of(DENSE))
    config = dataclasses.replace(DENSE)

    async def scenario():
        engine = engine_of()
        turn = asyncio.create_task(engine.generate(prompt(3), sampling(3, 20, ()), "a"))
        while engine.counters["generated"] < 4:
            await asyncio.sleep(0)
        engine.set_params(other, 1)
        mixed = await turn
        fresh = EmbeddedEngine(other, config, **{"slots": 1} | SHAPE, version=1)
        ids = [*prompt(3), *mixed.ids]
        return mixed, await engine.generate(ids, sampling(9), "a"), await fresh.generate(ids, sampling(9), "x")

    mixed, after, fresh = asyncio.run(scenario())
    assert mixed.versions == tuple(sorted(mixed.versions)) and set(mixed.versions) == {0, 1}
    assert (after.ids, after.versions) == (fresh.ids, fresh.versions) and after.versions[0] == 1
    np.testing.assert_allclose(after.logprobs, fresh.logprobs, atol=1e-5)


def test_abort_returns_what_is_there_and_cancellation_frees_the_slot():
    async def scenario():
        engine = engine_of(slots=1)
        turn = asyncio.create_task(engine.generate(prompt(0), sampling(0, 40, ()), "a"))
        waits = asyncio.create_task(engine.generate(prompt(1), sampling(0, 40, ()), "b"))
        while not engine.counters["generated"]:
            await asyncio.sleep(0)
        await engine.abort("a")
        await engine.abort("b")
        await engine.abort("nobody")
        aborted, never_began = await turn, await waits
        gone = asyncio.create_task(engine.generate(prompt(1), sampling(0, 40, ()), "c"))
        await asyncio.sleep(0)
        gone.cancel()
        return aborted, never_began, await engine.generate(prompt(0), sampling(0, 40, ()), "d")

    aborted, never_began, whole = asyncio.run(scenario())
    assert aborted.finish == "abort" and 0 < len(aborted.ids) < 40
    assert aborted.ids == whole.ids[: len(aborted.ids)]
    assert (never_began.finish, never_began.ids) == ("abort", ())
    assert (whole.finish, len(whole.ids)) == ("length", 40)


def test_pause_holds_requests_and_resume_lets_them_go():
    async def scenario():
        engine = engine_of()
        await engine.pause()
        turn = asyncio.create_task(engine.generate(prompt(0), sampling(), "a"))
        for _ in range(50):
            await asyncio.sleep(0)
        held = await engine.health()
        await engine.resume()
        await turn
        return held, await engine.health()

    held, after = asyncio.run(scenario())
    assert (held["status"], held["active"] + held["waiting"], held["counters"]["generated"]) == ("paused", 1, 0)
    assert (after["status"], after["active"], after["waiting"]) == ("ok", 0, 0)


def test_bad_requests_are_engine_errors():
    async def scenario():
        engine = engine_of()
        for ids, named in (([], "0 ids"), ([1] * 64, "64 ids"), ([1, 61], "vocabulary"), ([-1], "vocabulary")):
            with pytest.raises(EngineError, match=named):
                await engine.generate(ids, sampling(), "a")
        turn = asyncio.create_task(engine.generate(prompt(0), sampling(), "a"))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="in flight"):
            await engine.generate(prompt(0), sampling(), "a")
        await turn

    asyncio.run(scenario())
    with pytest.raises(ValueError, match="max_position"):
        engine_of(max_length=128)


def test_a_failing_device_call_reaches_every_waiting_episode(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("carr_jax.rollout.decode.prefill", broken)

    async def scenario():
        engine = engine_of(slots=1)
        turns = [engine.generate(prompt(i), sampling(), f"s{i}") for i in range(2)]
        return await asyncio.gather(*turns, return_exceptions=True)

    errors = asyncio.run(scenario())
    assert all(isinstance(e, EngineError) and "out of memory" in str(e) for e in errors)


def test_sampling_follows_the_distribution_and_depends_on_seed_and_position_only():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    n = 4000
    seeds = np.stack([np.zeros(n), np.arange(n)], axis=1).astype(np.uint32)
    draw = jax.jit(sample)
    ids, logprobs = draw(np.tile(logits, (n, 1)), np.full(n, 0.5, np.float32), seeds, np.full(n, 17))
    expected = np.array([0.25, 0.09, 0.04]) / 0.38  # temperature 0.5 squares the probabilities
    np.testing.assert_allclose(np.bincount(ids, minlength=3) / n, expected, atol=0.03)
    np.testing.assert_allclose(logprobs, np.log(expected)[np.asarray(ids)], rtol=1e-5)
    again, _ = draw(np.tile(logits, (n, 1)), np.full(n, 0.5, np.float32), seeds[::-1], np.full(n, 17))
    np.testing.assert_array_equal(again, ids[::-1])
    moved, _ = draw(np.tile(logits, (n, 1)), np.full(n, 0.5, np.float32), seeds, np.full(n, 18))
    assert (np.asarray(moved) != np.asarray(ids)).mean() > 0.2
