import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from carr_jax.models.attention import context_order
from carr_jax.models.compute import Compute
from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import hidden_states, init_params, param_shardings
from carr_jax.sharding import MESH_AXES, RULES, batch_sharding, make_mesh, mesh_shape, mesh_spec, row_shards

SIZES = {"vocab_size": 64, "d_model": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
DENSE = ModelConfig(**SIZES, d_ff=32, rope_theta=1e4)
MOE = ModelConfig(
    **SIZES, d_ff=0, rope_theta=1e4, tie_embeddings=False, num_experts=4, experts_per_token=2, d_ff_expert=8
)


def mesh(**sizes):
    return make_mesh(dict.fromkeys(MESH_AXES, 1) | sizes)


def draw_params(config):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    return jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape).astype(np.float32), shapes)


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize(
    "sizes", [dict(fsdp=2, tensor=2), dict(data=2, context=2), dict(expert=2, context=2)], ids=str
)
def test_four_devices_compute_what_one_computes(config, sizes):
    params = draw_params(config)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (4, 16)).astype(np.int32)
    positions, segments = np.tile(np.arange(16, dtype=np.int32), (4, 1)), np.ones((4, 16), np.int32)
    run = jax.jit(hidden_states, static_argnums=(1, 5))
    alone = np.asarray(run(params, config, tokens, positions, segments, Compute()))
    devices = mesh(**sizes)
    order = context_order(16, devices.shape["context"])
    spread = jax.device_put(params, param_shardings(config, devices))
    batch = jax.device_put([x[:, order] for x in (tokens, positions, segments)], batch_sharding(devices))
    together = jax.block_until_ready(run(spread, config, *batch, Compute(mesh=devices)))
    assert len(together.sharding.device_set) == 4
    np.testing.assert_allclose(np.asarray(together), alone[:, order], atol=2e-5)


def test_every_parameter_is_really_split():
    shardings = param_shardings(DENSE, mesh(fsdp=2, tensor=2))
    everywhere = ("fsdp", "expert", "context")
    assert shardings["layers"]["mlp"]["gate"].spec == PartitionSpec(None, everywhere, "tensor")
    assert shardings["layers"]["attention"]["o"].spec == PartitionSpec(None, "tensor", None, everywhere)
    assert all(everywhere in s.spec for s in jax.tree.leaves(shardings) if len(s.spec) > 2)


def test_two_dimensions_on_one_mesh_axis_are_refused():
    with pytest.raises(ValueError, match="collide"):
        mesh_spec(("heads", "mlp"))
    with pytest.raises(ValueError, match="collide"):
        mesh_spec(("batch", "embed"))
    with pytest.raises(KeyError):
        mesh_spec(("unheard_of",), RULES)


def test_a_free_axis_takes_the_devices_that_are_left():
    sizes = dict(data=1, fsdp=-1, expert=1, context=4, tensor=2)
    assert mesh_shape(sizes, 64) == dict(data=1, fsdp=8, expert=1, context=4, tensor=2)
    assert row_shards(mesh(fsdp=-1)) == jax.device_count()


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (dict(data=4, fsdp=16, tensor=16), "needs 1024 devices, have 4"),
        (dict(fsdp=-1, context=3), "does not divide the 4 devices"),
        (dict(fsdp=-1, data=-1), "only one axis may be -1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_one_clear_line(sizes, says):
    with pytest.raises(ValueError, match=says):
        mesh(**sizes)


def test_what_a_mesh_cannot_cut_is_one_clear_line():
    with pytest.raises(ValueError, match="config.mesh.tensor = 4 does not divide kv_heads=2 of this model"):
        param_shardings(DENSE, mesh(tensor=4))
