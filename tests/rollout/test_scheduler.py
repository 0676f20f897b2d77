"""The scheduler around a pretended engine that answers after a number of turns of the event loop."""

import asyncio
import itertools
import json
import random

import numpy as np
import pytest

from carr_jax.agent.chat import Chat, render_turn
from carr_jax.agent.episode import Budgets
from carr_jax.agent.tokenizer import train_bpe
from carr_jax.records import Begun, End, Generation, Page, Question, Score, ToolCall
from carr_jax.rollout.scheduler import Rollouts, Scheduler, Stream, run_groups
from carr_jax.rollout.staleness import StalenessGate
from carr_jax.search.corpus import Corpus
from carr_jax.stored import to_json, trajectory_from_json

CHAT = Chat(train_bpe(["the river of the town"] * 3, 300))
CORPUS = Corpus([Page("https://w.example/a", "a river", "the river of the town")])
QUESTIONS = [Question(f"q{i}", f"Which river {i}?", "Dove") for i in range(40)]
SEARCH = CHAT.tokenizer.encode_control(
    render_turn("look", "", [ToolCall("browser.search", {"query": "river"})])
)
ANSWER = CHAT.tokenizer.encode_control(render_turn("done", "It is Dove."))


class Engine:
    """Each turn takes a number of loop turns that depends on its seed; stamps the present version."""

    def __init__(self, slowest=20):
        self.slowest, self.version, self.active, self.most, self.turns = slowest, 0, 0, 0, []

    async def generate(self, ids, sampling, session):
        rng = random.Random(sampling.seed)
        searches = rng.random() < 0.5 and len(ids) < 3000
        self.turns.append((session, len(ids)))
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            for _ in range(rng.randint(1, self.slowest)):
                await asyncio.sleep(0)
        finally:
            self.active -= 1
        turn = SEARCH if searches else ANSWER
        return Generation(tuple(turn), (-0.5,) * len(turn), (self.version,) * len(turn), "stop")

    async def release(self, session):
        pass


async def score(question, trajectories):
    await asyncio.sleep(0)
    return [Score("ok", outcome=float(len(t.turns) > 1)) for t in trajectories]


def scheduler_of(engine, per_step=2, limit=0, steps=4, version=0, **options):
    rollouts = Rollouts(engine, CHAT, CORPUS, Budgets(10_000, 20, 20, 2_000))
    stream = Stream(lambda p: QUESTIONS[p], lambda p, i: 100 * p + i, group_size=3)
    gate = StalenessGate(per_step, limit, steps, version)
    return Scheduler(rollouts, stream, score, gate, **options)


async def steps_of(scheduler, engine, count=4):
    """Trains `count` steps; returns for each the questions, the oldest version and the trajectories."""
    seen = []
    for _ in range(count):
        groups = await scheduler.batch()
        versions = [int(t.versions[t.mask == 1].min()) for g in groups for t in g.trajectories]
        engine.version += 1
        worst = scheduler.trained()
        assert worst <= scheduler.gate.limit
        assert engine.version - 1 - min(versions) <= worst
        seen.append(groups)
    return seen


def test_synchronous_steps_follow_the_stream_and_depend_on_nothing_else():
    async def scenario(slowest):
        engine = Engine(slowest)
        return await steps_of(scheduler_of(engine), engine)

    quick, slow = asyncio.run(scenario(1)), asyncio.run(scenario(50))
    assert [[g.question.id for g in step] for step in quick] == [
        ["q0", "q1"],
        ["q2", "q3"],
        ["q4", "q5"],
        ["q6", "q7"],
    ]
    for a, b in zip(itertools.chain(*quick), itertools.chain(*slow), strict=True):
        assert [t.ids.tolist() for t in a.trajectories] == [t.ids.tolist() for t in b.trajectories]


@pytest.mark.parametrize("limit", [1, 3])
def test_with_staleness_groups_of_later_steps_play_meanwhile(limit):
    async def scenario():
        engine = Engine()
        scheduler = scheduler_of(engine, limit=limit, steps=6)
        steps = await steps_of(scheduler, engine, 6)
        assert scheduler.position == 12 and not scheduler.gate.started, "nothing plays that no step would train"
        return engine, steps

    engine, steps = asyncio.run(scenario())
    assert engine.most > 2 * 3
    trained = [t for step in steps for g in step for t in g.trajectories]
    assert len(trained) == 6 * 2 * 3 == len({(t.question_id, t.sample, t.ids.tobytes()) for t in trained})


def test_episodes_in_flight_are_bounded():
    async def scenario():
        engine = Engine()
        await steps_of(scheduler_of(engine, limit=3, in_flight=4), engine)
        return engine.most

    assert asyncio.run(scenario()) == 4


def test_groups_that_teach_nothing_are_dropped_and_refilled_within_the_budget():
    async def scenario(refill, worth):
        engine, dropped = Engine(), []
        scheduler = scheduler_of(engine, refill=refill, worth=worth)
        for _ in range(3):
            groups = await scheduler.batch()
            dropped.append(scheduler.refilled)
            engine.version += 1
            scheduler.trained()
            yield [g.question.id for g in groups], dropped[-1]

    async def collect(*args):
        return [step async for step in scenario(*args)]

    odd = lambda scored: int(scored.question.id[1:]) % 2  # noqa: E731
    assert asyncio.run(collect(9, odd)) == [([f"q{i}", f"q{i + 2}"], 2) for i in (1, 5, 9)]
    assert asyncio.run(collect(0, odd))[0] == (["q0", "q1"], 0)
    first = asyncio.run(collect(1, lambda scored: False))
    assert [count for _, count in first] == [1, 1, 1] and all(len(ids) == 2 for ids, _ in first)


@pytest.mark.parametrize("kill_after", [3, 40, 150])
def test_after_a_kill_nothing_finished_is_played_again(kill_after):
    """A checkpoint is taken while episodes of later steps are in flight; then everything is cancelled."""

    async def first_life():
        engine = Engine()
        scheduler = scheduler_of(engine, limit=2, steps=6)
        await steps_of(scheduler, engine, 1)
        for _ in range(kill_after):
            await asyncio.sleep(0)
        begun, position = scheduler.unfinished(), scheduler.position
        await scheduler.close()
        return begun, position

    async def second_life(begun, position):
        engine = Engine()
        engine.version = 1
        scheduler = scheduler_of(engine, limit=2, steps=6, version=1, begun=begun, position=position)
        return engine, await steps_of(scheduler, engine, 5)

    begun, position = asyncio.run(first_life())
    assert len(begun) == 6 and position == 8
    begun = [
        Begun(
            b.position,
            b.version,
            tuple(trajectory_from_json(json.loads(json.dumps(to_json(t)))) for t in b.trajectories),
        )
        for b in begun
    ]
    engine, steps = asyncio.run(second_life(begun, position))
    after = {(t.question_id, t.sample, t.ids.size): t for s in steps for g in s for t in g.trajectories}
    for group in begun:
        for t in group.trajectories:
            if t.end is not End.UNFINISHED:
                assert np.array_equal(after[t.question_id, t.sample, t.ids.size].versions, t.versions)
    played = {session for session, _ in engine.turns}
    ended = [
        f"{t.question_id}/{t.sample}/{100 * b.position + t.sample}"
        for b in begun
        for t in b.trajectories
        if t.end is not End.UNFINISHED
    ]
    assert not played & set(ended)
    longer = [t for b in begun for t in b.trajectories if t.end is End.UNFINISHED and t.turns]
    for t in longer:
        starts = [n for session, n in engine.turns if session.startswith(f"{t.question_id}/{t.sample}/")]
        assert min(starts) >= t.ids.size or len(starts) > 1
    assert sum(len(s) for s in steps) == 10


def test_a_bug_in_scoring_ends_the_run():
    async def broken(question, trajectories):
        raise KeyError("bug")

    async def scenario():
        rollouts = Rollouts(Engine(), CHAT, CORPUS, Budgets(10_000, 20, 20, 2_000))
        await run_groups(rollouts, QUESTIONS[:2], 2, (0,), broken)

    with pytest.raises(KeyError):
        asyncio.run(scenario())
