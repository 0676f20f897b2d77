"""Checkpoints: every bit comes back, a kill leaves the last complete one; and the parameter files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from carr_jax.learning.checkpoint import Checkpoints
from carr_jax.learning.step import LearnConfig, TrainState, init_state

CONFIG = LearnConfig()


def make_state(seed=0, width=3):
    params = {"layers": {"w": jax.random.normal(jax.random.key(seed), (2, width))}, "norm": jnp.ones(width)}
    state = init_state(params, CONFIG)
    return TrainState(state.params, state.opt_state, jnp.int32(7 + seed))


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_round_trip_is_bit_exact(tmp_path):
    odd = {
        "bf16": jnp.array([1.5, -0.0], jnp.bfloat16),
        "u32": jnp.uint32(2**32 - 1),
        "nan": jnp.float32(np.nan),
    }
    state = TrainState({**make_state().params, **odd}, make_state().opt_state, jnp.int32(2**31 - 1))
    extra = {"position": 12, "seed": 2**70, "name": "ü", "rate": 0.1, "nested": {"list": [1, None, True]}}
    Checkpoints(tmp_path, 2).save(3, state, extra)
    reopened = Checkpoints(tmp_path, 2)
    assert reopened.latest() == 3
    got, got_extra = reopened.restore(3, state)
    assert_same_bits(got, state)
    assert got_extra == extra
    assert_same_bits(reopened.restore(3, jax.eval_shape(lambda: state))[0], state)


def test_optimizer_without_state(tmp_path):
    params = {"w": jnp.ones(2)}
    state = TrainState(params, optax.sgd(1.0).init(params), jnp.int32(0))
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(0, state, {})
    assert_same_bits(checkpoints.restore(0, state)[0], state)


def test_restores_into_the_given_sharding(tmp_path):
    if jax.device_count() < 4:
        pytest.skip("needs 4 (fake) devices")
    state = {"w": jnp.arange(8.0)}
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(0, state, {})
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("fsdp",)), PartitionSpec("fsdp"))
    got, _ = checkpoints.restore(0, {"w": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)})
    assert got["w"].sharding == sharding
    np.testing.assert_array_equal(got["w"], np.arange(8.0))


def test_keeps_the_newest_and_refuses_to_go_back(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2)
    assert checkpoints.latest() is None
    for step in (1, 2, 5):
        checkpoints.save(step, make_state(step), {"step": step})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["2", "5"]
    with pytest.raises(ValueError, match="checkpoint 5 .* not be newer than 5"):
        checkpoints.save(5, make_state(), {})
    assert checkpoints.restore(2, make_state())[1] == {"step": 2}


def test_another_shape_is_one_clear_line(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(4, make_state(width=3), {})
    with pytest.raises(ValueError) as error:
        checkpoints.restore(4, make_state(width=5))
    assert "checkpoint 4" in str(error.value) and "float32[2,3] there and float32[2,5] here" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"extra is absent there and float32\[\] here"):
        checkpoints.restore(4, TrainState({**make_state().params, "extra": jnp.zeros(())}, (), jnp.int32(0)))


def test_unfinished_and_half_deleted_folders(tmp_path):
    """What a killed save or a killed deletion leaves is neither `latest` nor in the way."""
    Checkpoints(tmp_path, 1).save(1, make_state(1), {})
    Checkpoints(tmp_path, 2).save(2, make_state(2), {})
    for file in list((tmp_path / "1").rglob("*"))[::2]:
        if file.is_file():
            file.unlink()
    unfinished = tmp_path / "3.orbax-checkpoint-tmp"
    (unfinished / "state").mkdir(parents=True)
    (unfinished / "state" / "part").write_bytes(b"x")
    checkpoints = Checkpoints(tmp_path, 1)
    assert checkpoints.latest() == 2
    checkpoints.save(3, make_state(3), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["3"]
    assert_same_bits(checkpoints.restore(3, make_state())[0], make_state(3))


WRITER = """
import sys, jax.numpy as jnp
from carr_jax.learning.checkpoint import Checkpoints
checkpoints = Checkpoints(sys.argv[1], 1)
for step in range(1, 1000):
    print(step, flush=True)
    checkpoints.save(step, {"w": jnp.full((1000, 1000), step, jnp.float32)}, {"step": step})
"""


def test_kill_during_a_save(tmp_path):
    """The last checkpoint that was complete is there and whole."""
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    ) as p:
        while p.stdout.readline().strip() != "4":
            assert p.poll() is None
        p.send_signal(signal.SIGKILL)
    checkpoints = Checkpoints(tmp_path, 1)
    latest = checkpoints.latest()
    assert latest >= 3  # step 4 was announced, so step 3 was complete
    state, extra = checkpoints.restore(latest, {"w": jnp.zeros((1000, 1000))})
    assert extra == {"step": latest} and (state["w"] == latest).all()
    checkpoints.save(latest + 1, state, {})
    assert [x.name for x in tmp_path.iterdir()] == [str(latest + 1)]
