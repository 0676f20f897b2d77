import random

import pytest

from carr_jax.rollout.staleness import StalenessGate


def test_synchronous_is_one_batch_after_the_other():
    gate = StalenessGate(per_step=2, limit=0, steps=2)
    for position in (0, 1):
        assert gate.may_start()
        gate.start(position)
    assert not gate.may_start()
    gate.finish(1)
    assert gate.batch() is None, "the other one belongs to this step"
    gate.finish(0)
    assert gate.batch() == (0, 1)
    assert gate.train((0, 1)) == 0
    gate.start(2), gate.start(3), gate.finish(2), gate.finish(3)
    gate.train(gate.batch())
    assert gate.version == 2 and not gate.may_start(), "the run is over"


def test_a_straggler_is_overtaken_until_its_deadline():
    gate = StalenessGate(per_step=1, limit=2, steps=9)
    for position in range(3):
        gate.start(position)
    assert not gate.may_start()
    staleness = []
    for position in (1, 2):  # 0 is slow
        gate.finish(position)
        staleness.append(gate.train(gate.batch()))
        gate.start(position + 2)
    gate.finish(3)
    assert gate.batch() is None, "0 started at version 0, and this is step 2"
    gate.finish(0)
    assert gate.batch() == (0,)
    staleness.append(gate.train((0,)))
    assert staleness == [0, 1, 2]


def test_a_dropped_group_makes_room():
    gate = StalenessGate(per_step=1, limit=0, steps=9)
    gate.start(0), gate.finish(0), gate.drop(0)
    assert gate.batch() is None and gate.may_start()
    gate.start(1), gate.finish(1)
    assert gate.batch() == (1,)


def test_what_cannot_be_kept_is_refused():
    gate = StalenessGate(per_step=1, limit=1, steps=9, version=5)
    gate.start(7, version=4)
    with pytest.raises(ValueError, match="started already"):
        gate.start(7)
    with pytest.raises(ValueError, match="within 1 versions"):
        gate.start(8, version=4)  # both would have to be trained at step 5
    gate.start(8)
    with pytest.raises(ValueError, match="not outstanding"):
        gate.finish(9)


@pytest.mark.parametrize("limit", [0, 1, 2, 4])
def test_no_schedule_exceeds_the_limit_or_gets_stuck(limit):
    """2,500 random schedules each: starts, ends, drops, updates, kills and resumes from a checkpoint."""
    for seed in range(2_500):
        rng = random.Random(seed)
        per_step, steps = rng.randint(1, 4), rng.randint(1, 8)
        assert play(rng, per_step, limit, steps) <= limit


def play(rng, per_step, limit, steps):
    gate, position, worst = StalenessGate(per_step, limit, steps), 0, 0
    saved = (0, {}, set(), 0)
    kills = 3
    while gate.version < steps:
        running = sorted(gate.started.keys() - gate.finished)
        batch = gate.batch()
        actions = ["start"] * gate.may_start() + ["end"] * bool(running) + ["train"] * (batch is not None)
        assert actions, "stuck"
        if kills and rng.random() < 0.05:
            actions, kills = ["kill"], kills - 1
        match rng.choice(actions):
            case "start":
                gate.start(position)
                position += 1
            case "end":
                chosen = rng.choice(running)
                gate.finish(chosen)
                if rng.random() < 0.2:
                    gate.drop(chosen)
            case "train":
                before = {p: gate.started[p] for p in batch}
                assert len(batch) == per_step
                assert gate.train(batch) == gate.version - 1 - min(before.values())
                worst = max(worst, gate.version - 1 - min(before.values()))
                if rng.random() < 0.5:
                    saved = (gate.version, dict(gate.started), set(gate.finished), position)
            case "kill":
                version, started, finished, position = saved
                gate = StalenessGate(per_step, limit, steps, version)
                for p, v in sorted(started.items(), key=lambda item: -item[1]):
                    gate.start(p, v)
                for p in finished:
                    gate.finish(p)
        assert len(gate.started) <= per_step * (limit + 1)
    return worst
