"""Several servers, of which some fail: nothing is lost that could be kept, nothing kept that is not proven."""

import asyncio
import contextlib

import numpy as np
import pytest
from forward import teacher_forced
from standin import StandIn
from tiny_models import DENSE, params_of

from carr_jax.records import Sampling
from carr_jax.rollout.engine import EngineError, WeightUpdateError
from carr_jax.rollout.fleet import PoolOptions
from carr_jax.rollout.pool import SGLangPool

pytestmark = pytest.mark.usefixtures("compile_quickly")
QUICK = dict(backoff_s=0.01, health_s=0.05, request_s=20.0, recover_s=10.0)
LONG = 70


def prompt(seed, length=9):
    return np.random.default_rng(seed).integers(9, 61, length).tolist()


def sampling(max_tokens=8, seed=0, stop_ids=()):
    return Sampling(max_tokens, stop_ids, 1.0, seed)


@pytest.fixture
def play(folders):
    """`play(scenario, servers, **options of the pool)`: runs scenario(pool, servers) against stand-ins."""

    def run(scenario, servers=2, kind=None, **options):
        async def opened():
            async with contextlib.AsyncExitStack() as stack, asyncio.timeout(60):
                members = [StandIn(folders / "dense", **(kind or {})) for _ in range(servers)]
                for member in members:
                    await stack.enter_async_context(member)
                pool = SGLangPool(
                    [m.url for m in members], folders / "dense", 0, PoolOptions(**QUICK | options)
                )
                return await scenario(await stack.enter_async_context(pool), members)

        return asyncio.run(opened())

    return run


async def in_the_middle(servers, count=1):
    """Returns when `count` turns are being sampled, five tokens each or more."""
    before = sum(s.engine.counters["generated"] for s in servers)
    while sum(len(s.in_flight) for s in servers) < count:
        await asyncio.sleep(0)
    while sum(s.engine.counters["generated"] for s in servers) < before + 5 * count:
        await asyncio.sleep(0)


def begin(pool, count, max_tokens=LONG):
    turns = (pool.generate(prompt(i), sampling(max_tokens, seed=i), f"s{i}") for i in range(count))
    return [asyncio.create_task(turn) for turn in turns]


def is_right(generation, seed, max_tokens=LONG, params=None):
    """The whole turn is there, and its log-probs are those of the weights."""
    assert (generation.finish, len(generation.ids)) == ("length", max_tokens)
    ids = [*prompt(seed), *generation.ids]
    exact = teacher_forced(params or params_of(DENSE), DENSE, ids)[8:]
    np.testing.assert_allclose(generation.logprobs, exact, atol=1e-4)


# ----------------------------------------------------------------------------------------------- where turns go


def test_sessions_spread_and_come_back_to_their_server(play):
    async def scenario(pool, servers):
        ids = {f"s{i}": prompt(i, 20) for i in range(6)}
        for turn in range(3):
            for session in ids:
                generation = await pool.generate(ids[session], sampling(6, turn), session)
                ids[session] = [*ids[session], *generation.ids, *prompt(turn, 3)]
        homes = (await pool.health())["servers"]
        prefilled = sum(s.engine.counters["prefilled"] for s in servers)
        await asyncio.gather(*map(pool.release, ids))
        return homes, prefilled, (await pool.health())["servers"], pool.counters

    homes, prefilled, after, counters = play(scenario)
    assert [server["sessions"] for server in homes.values()] == [3, 3]
    assert [server["sessions"] for server in after.values()] == [0, 0]
    new = 6 * (20 + 2 * 3)  # what was not sampled there; the probes of two servers add 2 * 24
    assert prefilled <= new + 2 * 24 + 6 * 3
    assert counters["prompt_tokens"] - counters["cached_tokens"] <= new + 6 * 3


def test_new_sessions_go_where_the_fewest_tokens_are_in_flight(play):
    async def scenario(pool, servers):
        long = asyncio.create_task(pool.generate(prompt(0, 60), sampling(30), "long"))
        await in_the_middle(servers)
        (other,) = [s for s in servers if not s.in_flight]
        turns = [asyncio.create_task(pool.generate(prompt(i), sampling(20), f"s{i}")) for i in range(3)]
        while sum(len(s.in_flight) for s in servers) < 4:
            await asyncio.sleep(0)
        count = len(other.in_flight)
        await asyncio.gather(long, *turns)
        return count

    assert play(scenario) == 3


# ------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("fault", ["fail", "cut", "misaligned", "other_prompt"])
def test_a_broken_answer_is_asked_for_again(play, fault):
    async def scenario(pool, servers):
        setattr(servers[0].faults, fault, 2)
        turn = await pool.generate(prompt(0), sampling(8), "s0")
        return turn, pool.counters

    turn, counters = play(scenario, servers=1)
    is_right(turn, 0, 8)
    assert (counters["retries"], counters["ejections"], counters["requests"]) == (2, 0, 3)


def test_news_are_what_the_counters_gained(play):
    async def scenario(pool, servers):
        first = pool.news()
        servers[0].faults.fail = 1
        await pool.generate(prompt(0), sampling(8), "s0")
        return first, pool.news(), pool.news()

    first, second, third = play(scenario, servers=1)
    assert first["updates"] == 1 and first["requests"] == 0
    assert (second["requests"], second["retries"], second["generated"], second["updates"]) == (2, 1, 8, 0)
    assert not any(third.values())


def test_a_probe_that_fails_once_costs_no_server(play):
    async def scenario(pool, servers):
        servers[0].faults.fail = 2
        await pool.update_weights(pool.fleet.weights.folder, 1)
        return pool.counters

    assert play(scenario, servers=1)["ejections"] == 0


def test_an_update_waits_for_a_server_to_return(play):
    """The only one dies; the update succeeds once it is back, where it would have ended the run."""

    async def scenario(pool, servers):
        await servers[0].die()
        update = asyncio.create_task(pool.update_weights(pool.fleet.weights.folder, 1))
        while not pool.counters["ejections"]:
            await asyncio.sleep(0.02)
        await servers[0].begin()
        await update
        return await pool.generate(prompt(0), sampling(8), "s0"), pool.counters

    turn, counters = play(scenario, servers=1)
    assert set(turn.versions) == {1} and counters["returns"] == 1


def test_missing_logprobs_are_nan_for_the_learner_to_leave_out(play):
    async def scenario(pool, servers):
        servers[0].faults.without_logprobs = 1
        return await pool.generate(prompt(0), sampling(8), "s0")

    turn = play(scenario, servers=1)
    assert len(turn.ids) == 8 and np.isnan(turn.logprobs).all()


def test_a_turn_that_fails_again_and_again_is_an_engine_error(play):
    async def scenario(pool, servers):
        servers[0].faults.fail = 100
        with pytest.raises(EngineError, match="session s0: 3 attempts failed, the last: .*out of memory"):
            await pool.generate(prompt(0), sampling(8), "s0")
        servers[0].faults.fail = 0
        return await pool.generate(prompt(0), sampling(8), "s0")

    is_right(play(scenario, servers=1, attempts=3, misses=100), 0, 8)


def test_a_hanging_request_is_given_up_and_goes_elsewhere(play):
    async def scenario(pool, servers):
        servers[0].faults.hang = servers[1].faults.hang = 1
        turn = await pool.generate(prompt(0), sampling(8), "s0")
        return turn, pool.counters

    turn, counters = play(scenario, request_s=1.0, prefill_s=0.0, decode_s=0.0)
    is_right(turn, 0, 8)
    assert (counters["retries"], counters["ejections"]) == (2, 0)


def test_patience_grows_with_the_request_and_stands_still_in_a_pause(play):
    async def scenario(pool, servers):
        turns = begin(pool, 2)
        await in_the_middle(servers, 2)
        await pool.pause()
        await asyncio.sleep(5.0)  # longer than a turn may take
        await pool.resume()
        return await asyncio.gather(*turns), pool.counters

    turns, counters = play(scenario, request_s=0.1, prefill_s=0.0, decode_s=0.06, health_s=5.0)
    assert counters["retries"] == 0 and [len(turn.ids) for turn in turns] == [LONG, LONG]


def test_a_session_whose_server_dies_goes_on_elsewhere_and_the_server_returns_with_the_current_weights(
    play, folders
):
    async def scenario(pool, servers):
        await pool.update_weights(folders / "dense_other", 1)
        turns = begin(pool, 4)
        await in_the_middle(servers, 4)
        await servers[0].die()
        done = await asyncio.gather(*turns)
        while not pool.counters["ejections"]:
            await asyncio.sleep(0.01)
        down = await pool.health()
        await servers[0].begin()  # with the weights of the beginning
        while not pool.counters["returns"]:
            await asyncio.sleep(0.01)
        later = await asyncio.gather(*begin(pool, 4, 8))
        return done, later, down, servers, await pool.health()

    done, later, down, servers, up = play(scenario)
    assert all(set(turn.versions) == {1} for turn in [*done, *later])
    assert [len(turn.ids) for turn in done] == [LONG] * 4 and [len(turn.ids) for turn in later] == [8] * 4
    assert [server["alive"] for server in down["servers"].values()] == [False, True]
    assert [server["alive"] for server in up["servers"].values()] == [True, True]
    assert servers[0].names == ["default", "1"]


def test_when_all_servers_are_gone_turns_wait_for_one(play):
    async def scenario(pool, servers):
        await servers[0].die()
        turn = asyncio.create_task(pool.generate(prompt(0), sampling(8), "s0"))
        while not pool.counters["ejections"]:
            await asyncio.sleep(0.01)
        status = (await pool.health())["status"]
        await servers[0].begin()
        return status, await turn

    status, turn = play(scenario, servers=1)
    assert status == "down"
    is_right(turn, 0, 8)


def test_when_none_returns_the_turn_is_an_engine_error(play):
    async def scenario(pool, servers):
        await servers[0].die()
        with pytest.raises(EngineError, match="no server has answered for"):
            await pool.generate(prompt(0), sampling(8), "s0")
        await servers[0].begin()

    play(scenario, servers=1, recover_s=0.2, health_s=30.0)


def test_a_server_that_restarted_unseen_is_not_believed(play):
    """Its tokens come from the weights that it began with: they are dropped, and it gets the current ones."""

    async def scenario(pool, servers):
        await servers[0].die()
        await servers[0].begin()
        turn = await pool.generate(prompt(0), sampling(8), "s0")
        return turn, pool.counters

    turn, counters = play(scenario, servers=1, health_s=0.3)
    is_right(turn, 0, 8)
    assert set(turn.versions) == {0} and counters["tokens_lost"] > 0 and counters["returns"] == 1


def test_the_pool_does_not_open_without_a_server(folders):
    async def scenario():
        async with SGLangPool(["http://127.0.0.1:9"], folders / "dense"):
            pass

    with pytest.raises(EngineError, match="no server answers: http://127.0.0.1:9"):
        asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize("in_flight", ["keep", "resume"])
def test_no_decoded_token_is_lost_by_updates(play, folders, in_flight):
    """What the servers sampled is exactly what the turns hold, over three updates with all turns in flight."""

    async def scenario(pool, servers):
        counted = sum(s.engine.counters["generated"] for s in servers)
        turns = begin(pool, 8)
        for version, name in ((1, "dense_other"), (2, "dense"), (3, "dense_other")):
            await in_the_middle(servers, 8)
            await pool.update_weights(folders / name, version)
        turns = await asyncio.gather(*turns)
        probes = 3 * len(servers)  # a probe samples one token
        sampled = sum(s.engine.counters["generated"] for s in servers) - counted - probes
        return turns, sampled, pool.counters

    turns, sampled, counters = play(scenario, in_flight=in_flight)
    assert sampled == sum(len(turn.ids) for turn in turns) == 8 * LONG
    for turn in turns:
        assert list(turn.versions) == sorted(turn.versions) and set(turn.versions) == {0, 1, 2, 3}
    assert counters["tokens_lost"] == counters["retries"] == 0
    assert counters["tokens_kept"] == sum(v < 3 for turn in turns for v in turn.versions)
    assert counters["resumed_turns"] == (24 if in_flight == "resume" else 0)


@pytest.mark.parametrize("fault", ["refuse_update", "load_then_refuse", "wrong_weights"])
@pytest.mark.parametrize("in_flight", ["keep", "resume"])
def test_weights_change_on_all_servers_or_on_none(play, folders, fault, in_flight):
    async def scenario(pool, servers):
        turns = begin(pool, 4)
        await in_the_middle(servers, 4)
        setattr(servers[1].faults, fault, True)
        with pytest.raises(WeightUpdateError, match=servers[1].url):
            await pool.update_weights(folders / "dense_other", 1)
        turns = await asyncio.gather(*turns)
        setattr(servers[1].faults, fault, False)
        while not all(server["alive"] for server in (await pool.health())["servers"].values()):
            await asyncio.sleep(0.01)  # one that refused to go back as well has to prove itself first
        after = await asyncio.gather(*begin(pool, 4, 8))
        await pool.update_weights(folders / "dense_other", 1)
        return turns, after, (await pool.generate(prompt(9), sampling(8), "new"))

    turns, after, new = play(scenario, in_flight=in_flight)
    for i, turn in enumerate(turns):
        assert set(turn.versions) == {0}
        is_right(turn, i)
    for i, turn in enumerate(after):
        assert set(turn.versions) == {0}
        is_right(turn, i, 8)
    assert set(new.versions) == {1}


def test_a_server_that_dies_in_an_update_does_not_hold_up_the_others(play, folders):
    async def scenario(pool, servers):
        turns = begin(pool, 4)
        await in_the_middle(servers, 4)
        await servers[1].die()
        await pool.update_weights(folders / "dense_other", 1)
        turns = await asyncio.gather(*turns)
        await servers[1].begin()
        while not pool.counters["returns"]:
            await asyncio.sleep(0.01)
        return turns, servers[1].names

    turns, names = play(scenario)
    assert all(len(turn.ids) == LONG and turn.versions[-1] == 1 for turn in turns)
    assert names == ["default", "1"]


def test_servers_that_take_no_weights_are_a_clear_refusal(play, folders):
    async def scenario(pool, servers):
        turn = await pool.generate(prompt(0), sampling(8), "s0")
        with pytest.raises(WeightUpdateError, match="cannot take new weights"):
            await pool.update_weights(folders / "dense_other", 1)
        return turn

    is_right(play(scenario, kind={"updates": False}), 0, 8)
