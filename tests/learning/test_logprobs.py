"""P15, P16, P18 and the equality of chunked and full log-probs, gradients included."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carr_jax.learning import batch, logprobs, losses
from carr_jax.models.compute import Compute
from carr_jax.sharding import make_mesh


def token_logprobs(hidden, head, targets, temperature, chunk, mask=None, compute=Compute()):
    """All positions masked in, unless said otherwise."""
    mask = jnp.ones(targets.shape, bool) if mask is None else mask
    return logprobs.token_logprobs(hidden, head, targets, mask, temperature, chunk, compute)


def oracle(hidden, head, targets, temperature):
    """The same in NumPy, float64."""
    logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64) / temperature
    shifted = logits - logits.max(-1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen = np.take_along_axis(logp, np.asarray(targets)[..., None], -1)[..., 0]
    return chosen, -(np.exp(logp) * logp).sum(-1)


def example(batch=2, length=7, width=5, vocab=11):
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (batch, length, width))
    head = jax.random.normal(keys[1], (width, vocab))
    return hidden, head, jax.random.randint(keys[2], (batch, length), 0, vocab)


@pytest.mark.parametrize("temperature, expected", [(1.0, -0.12693), (0.5, -0.01815)])
def test_temperature_divides_the_logits(temperature, expected):  # P15
    hidden, head = jnp.array([[[2.0, 0.0]]]), jnp.eye(2)
    logp, _ = token_logprobs(hidden, head, jnp.zeros((1, 1), int), temperature, 8)
    assert float(logp[0, 0]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature, chunk", [(0.0, 8), (-1.0, 8), (1.0, 0), (float("nan"), 8)])
def test_bad_temperature_or_chunk(temperature, chunk):  # P15
    with pytest.raises(ValueError, match="positive"):
        token_logprobs(*example(), temperature, chunk)


@pytest.mark.parametrize("chunk", [1, 6, 1000])
def test_chunked_equals_full(chunk):
    hidden, head, targets = example()
    logp, entropy = token_logprobs(hidden, head, targets, 0.7, chunk)
    want = oracle(hidden, head, targets, 0.7)
    np.testing.assert_allclose(logp, want[0], atol=1e-5)
    np.testing.assert_allclose(entropy, want[1], atol=1e-5)


def test_chunked_gradient_equals_full():
    hidden, head, targets = example()
    weights = jax.random.normal(jax.random.key(1), targets.shape)

    def chunked(hidden, head):
        return (weights * token_logprobs(hidden, head, targets, 0.7, 6)[0]).sum()

    def full(hidden, head):
        logp = jax.nn.log_softmax(hidden @ head / 0.7)
        return (weights * jnp.take_along_axis(logp, targets[..., None], -1)[..., 0]).sum()

    for got, want in zip(
        jax.jit(jax.grad(chunked, (0, 1)))(hidden, head),
        jax.jit(jax.grad(full, (0, 1)))(hidden, head),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("masked", [0, 1, 5, 14])
def test_only_masked_in_positions_count(masked):
    """0 elsewhere, no gradient from there, and only as many chunks as the mask needs."""
    hidden, head, targets = example()
    mask = np.zeros(14, bool)
    mask[np.random.default_rng(0).permutation(14)[:masked]] = True
    mask = mask.reshape(2, 7)
    logp, entropy = token_logprobs(hidden, head, targets, 0.7, 3, mask)
    want = oracle(hidden, head, targets, 0.7)
    np.testing.assert_allclose(logp, np.where(mask, want[0], 0), atol=1e-5)
    np.testing.assert_allclose(entropy, np.where(mask, want[1], 0), atol=1e-5)
    grad = jax.grad(lambda h: token_logprobs(h, head, targets, 0.7, 3, mask)[0].sum())(hidden)
    assert (np.abs(grad).max(-1) > 0).tolist() == mask.tolist()
    assert int(logprobs._plan(jnp.asarray(mask.reshape(-1)), 3).chunks) == -(-masked // 3)


@pytest.mark.parametrize(
    "sizes", [dict(fsdp=4), dict(fsdp=2, context=2), dict(tensor=4), dict(expert=2, tensor=2)]
)
def test_four_devices_equal_one(sizes):
    """Rows, sequence, the head's width and its vocabulary cut over the mesh; values and gradients."""
    mesh = make_mesh(dict.fromkeys(("data", "fsdp", "expert", "context", "tensor"), 1) | sizes)
    hidden, head, targets = example(batch=4, length=8, width=8, vocab=12)
    mask = jax.random.bernoulli(jax.random.key(4), 0.6, targets.shape)
    weights = jax.random.normal(jax.random.key(1), targets.shape)

    def loss(hidden, head, compute):
        logp, entropy = token_logprobs(hidden, head, targets, 0.7, 3, mask, compute)
        return jnp.sum(weights * logp), (logp, entropy)

    run = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)
    want = run(hidden, head, Compute())
    got = jax.block_until_ready(run(hidden, head, Compute(mesh=mesh)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), got, want)


def test_full_logits_are_never_held():
    """No value of the forward and backward program is as large as all logits."""
    hidden, head, targets = example(batch=1, length=64, width=4, vocab=50)

    def f(hidden, head):
        return token_logprobs(hidden, head, targets, 1.0, 8)[0].sum()

    jaxpr = str(jax.make_jaxpr(jax.grad(f, (0, 1)))(hidden, head))
    assert "[8,50]" in jaxpr  # the logits of one chunk are there,
    assert "[64,50]" not in jaxpr and "64,50]" not in jaxpr  # but not those of all chunks


def test_logits_are_fp32_for_bf16_hidden_states():  # P16
    vocab = 512
    hidden = jax.random.normal(jax.random.key(2), (1, 16, 32)).astype(jnp.bfloat16)
    head = (jax.random.normal(jax.random.key(3), (32, vocab)) * 0.3).astype(jnp.bfloat16).astype(jnp.float32)
    targets = jax.random.randint(jax.random.key(4), (1, 16), 0, vocab)
    logp, entropy = token_logprobs(hidden, head, targets, 1.0, 8)
    assert logp.dtype == entropy.dtype == jnp.float32
    np.testing.assert_allclose(logp, oracle(hidden, head, targets, 1.0)[0], atol=2e-4)


def test_head_gradient_of_bf16_hidden_states_is_summed_in_fp32():
    """1024 chunks with equal contributions: a bf16 sum would stop growing at 256 of them."""
    hidden = jnp.ones((1, 1024, 1), jnp.bfloat16)
    targets = jnp.zeros((1, 1024), int)
    gradient = jax.grad(lambda head: token_logprobs(hidden, head, targets, 1.0, 1)[0].sum())(jnp.zeros((1, 2)))
    np.testing.assert_allclose(gradient, [[512.0, -512.0]], rtol=1e-3)


def test_token_t_is_scored_at_t_minus_one():  # P18
    ids = np.array([3, 1, 4, 2], np.int32)
    packed = batch.pack([batch.supervised_example(ids, np.array([0, 0, 1, 1]), "q")], 4, 1, 1, "global_tokens")
    hidden, head, _ = example(batch=1, length=4)

    def f(hidden):
        logp, entropy = token_logprobs(hidden, head, jnp.asarray(packed.targets[0]), 1.0, 8)
        return losses.sft_loss(logp, entropy, jnp.asarray(packed.weights[0]))[0]

    loss, gradient = jax.jit(jax.value_and_grad(f))(hidden)
    assert np.abs(gradient[0]).sum(-1).nonzero()[0].tolist() == [1, 2]
    by_hand = oracle(hidden[:, 1:3], head, ids[None, 2:4], 1.0)[0]
    assert float(loss) == pytest.approx(-by_hand.mean(), abs=1e-5)
