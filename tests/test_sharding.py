import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from carr_jax.models.config import ModelConfig
from carr_jax.models.qwen3 import hidden_states, init_params
from carr_jax.sharding import RULES, batch_sharding, make_mesh, mesh_spec, param_shardings

SIZES = {"vocab_size": 64, "d_model": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
DENSE = ModelConfig(**SIZES, d_ff=32, rope_theta=1e4)
MOE = ModelConfig(
    **SIZES, d_ff=0, rope_theta=1e4, tie_embeddings=False, num_experts=4, experts_per_token=2, d_ff_expert=8
)


def draw_params(config):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
    return jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape).astype(np.float32), shapes)


@pytest.mark.parametrize(
    ("config", "shape"),
    [(DENSE, (1, 2, 2)), (DENSE, (2, 2, 1)), (MOE, (1, 2, 2))],
    ids=["dense_tensor", "dense_data", "moe"],
)
def test_four_devices_compute_what_one_computes(config, shape):
    params = draw_params(config)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (4, 16)).astype(np.int32)
    positions, segments = np.tile(np.arange(16, dtype=np.int32), (4, 1)), np.ones((4, 16), np.int32)
    run = jax.jit(hidden_states, static_argnums=1)
    alone = np.asarray(run(params, config, tokens, positions, segments))
    mesh = make_mesh(shape)
    spread = jax.device_put(params, param_shardings(config, mesh))
    batch = jax.device_put((tokens, positions, segments), batch_sharding(mesh))
    together = jax.block_until_ready(run(spread, config, *batch))
    assert len(together.sharding.device_set) == 4
    np.testing.assert_allclose(np.asarray(together), alone, atol=2e-5)


def test_every_parameter_is_really_split():
    shardings = param_shardings(DENSE, make_mesh((1, 2, 2)))
    assert shardings["layers"]["mlp"]["gate"].spec == PartitionSpec(None, "fsdp", "tensor")
    assert shardings["layers"]["attention"]["o"].spec == PartitionSpec(None, "tensor", None, "fsdp")
    assert all("fsdp" in s.spec for s in jax.tree.leaves(shardings) if len(s.spec) > 2)


def test_two_dimensions_on_one_mesh_axis_are_refused():
    with pytest.raises(ValueError, match="collide"):
        mesh_spec(PartitionSpec("heads", "mlp"))
    with pytest.raises(ValueError, match="collide"):
        mesh_spec(PartitionSpec("batch", "embed"))
    with pytest.raises(KeyError):
        mesh_spec(PartitionSpec("unheard_of"), RULES)


def test_too_large_a_mesh_is_one_clear_line():
    with pytest.raises(ValueError, match="needs 1024 devices"):
        make_mesh((4, 16, 16))


def test_heads_that_a_mesh_cannot_cut_are_one_clear_line():
    with pytest.raises(ValueError, match="config.mesh.tensor=4 does not divide kv_heads=2 of this model"):
        param_shardings(DENSE, make_mesh((1, 1, 4)))
