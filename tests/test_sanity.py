"""The check that a policy predicts text: the shipped one does, and weights in the wrong place are seen."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from carr_jax import sanity
from carr_jax.agent.chat import Chat
from carr_jax.models.qwen3 import head_matrix, hidden_states, param_shardings
from carr_jax.policy import SAMPLE, read_policy
from carr_jax.sanity import doubt, encode, loose_limit, read_text, strict_limit, warning
from carr_jax.sharding import MESH_AXES, make_mesh

SHIPPED = read_policy(Path(__file__).parents[1] / "carr_jax" / "assets" / "sft_tiny")
TRACE = SHIPPED.beside[SAMPLE].decode()


def changed(change, **model):
    params = jax.tree.map(np.copy, SHIPPED.params)
    change(params)
    return dataclasses.replace(SHIPPED, model=dataclasses.replace(SHIPPED.model, **model), params=params)


def swap_q_and_k(params):
    attention = params["layers"]["attention"]
    q, k = attention["q"], attention["k"]
    attention["q"], attention["k"] = np.repeat(k, 2, axis=2), q[:, :, :1]


def swap_heads(params):
    params["layers"]["attention"]["q"] = params["layers"]["attention"]["q"][:, :, ::-1]


def transpose_values(params):
    v = params["layers"]["attention"]["v"]
    params["layers"]["attention"]["v"] = v.reshape(4, 128, 64).swapaxes(1, 2).reshape(v.shape)


def reverse_layers(params):
    params["layers"] = jax.tree.map(lambda x: x[::-1], params["layers"])


def another_head(params):
    params["head"] = 0.1 * np.random.default_rng(0).standard_normal((128, 2230)).astype(np.float32)


def nothing(params):
    pass


def test_the_shipped_policy_knows_its_sample():
    reading, said = doubt(SHIPPED, strict_limit(2230))
    assert (reading.text, said) == (SAMPLE, "")
    assert reading.perplexity < 1.1 and reading.tokens > 200
    assert warning(SHIPPED) == ""


WRONG = (swap_q_and_k, swap_heads, transpose_values, reverse_layers, another_head)


@pytest.mark.parametrize("change", WRONG, ids=lambda f: f.__name__)
def test_weights_in_the_wrong_place_are_seen(change):
    broken = changed(change, tie_embeddings=change is not another_head)
    for limit in (strict_limit(2230), loose_limit(2230)):
        reading, said = doubt(broken, limit)
        assert reading.perplexity > 10 * limit
        assert "permuted heads or layers" in said and "blind guessing 2,230" in said and "\n" not in said
    assert warning(broken) == said


def test_a_wrong_rotary_base_makes_it_worse_but_must_be_far_off_to_be_seen():
    """The limit of the method, so that nobody relies on it: parity with transformers finds the rest."""
    right = read_text(SHIPPED, "", TRACE).perplexity
    off, far_off = (read_text(changed(nothing, rope_theta=x), "", TRACE).perplexity for x in (1e4, 2.0))
    assert 2 * right < off < strict_limit(2230) < far_off


def test_perplexity_is_what_numpy_says():
    ids, counted = encode(SHIPPED, TRACE)
    tokens = np.asarray(ids, np.int32)[None]
    inputs = (tokens, np.arange(len(ids))[None], np.ones_like(tokens))
    hidden = jax.jit(hidden_states, static_argnums=1)(SHIPPED.params, SHIPPED.model, *inputs)
    logits = np.asarray(hidden[0] @ head_matrix(SHIPPED.params, SHIPPED.model), np.float64)
    normalisers = np.log(np.exp(logits).sum(-1))
    nll = [normalisers[t - 1] - logits[t - 1, ids[t]] for t in range(1, len(ids)) if counted[t]]
    reading = read_text(SHIPPED, "", TRACE)
    assert reading.tokens == len(nll)
    assert reading.perplexity == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)


def test_blind_guessing_has_the_size_of_the_vocabulary():
    blind = changed(lambda params: params["embedding"].fill(0))
    assert read_text(blind, "", TRACE).perplexity == pytest.approx(2230, rel=1e-3)


def test_parameters_on_a_mesh_read_the_same():
    mesh = make_mesh(dict.fromkeys(MESH_AXES, 1) | dict(data=2, fsdp=2))
    params = jax.device_put(SHIPPED.params, param_shardings(SHIPPED.model, mesh))
    spread = read_text(dataclasses.replace(SHIPPED, params=params), "", TRACE)
    assert spread.perplexity == pytest.approx(read_text(SHIPPED, "", TRACE).perplexity, rel=1e-4)


def test_only_what_the_assistant_writes_counts():
    """The same ids and mask as the episode code makes, from the text alone."""
    chat = Chat(SHIPPED.tokenizer)
    turns = ["I look.\n</think>\n\n<tool_call>\n{}\n</tool_call><|im_end|>", "So.\n</think>\n\nBath<|im_end|>"]
    parts = [(chat.prompt_ids("Where?"), 0), (chat.turn_ids(turns[0]), 1)]
    parts += [(chat.observation_ids(["It is in Bath."]), 0), (chat.turn_ids(turns[1]), 1)]
    ids, mask = [i for p, _ in parts for i in p], [m for p, m in parts for _ in p]
    found, counted = encode(SHIPPED, SHIPPED.tokenizer.decode(ids))
    assert found == ids and counted.astype(int).tolist() == mask
    assert encode(SHIPPED, "no transcript")[1].all()


def test_a_long_text_is_cut_and_an_empty_one_is_never_good(monkeypatch):
    monkeypatch.setattr(sanity, "LONGEST", len(encode(SHIPPED, TRACE)[0]))
    assert read_text(SHIPPED, "", TRACE + TRACE) == read_text(SHIPPED, "", TRACE)
    assert doubt(SHIPPED, 1e9, [("empty", "")])[1]
