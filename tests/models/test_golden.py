"""Logits equal to Hugging Face transformers, through the checkpoint reader."""

import numpy as np
import pytest
from golden import (
    CASES,
    FILE,
    LAYERED,
    hidden_name,
    inputs,
    our_states,
    torch_states,
    write_checkpoint,
)

from carr_jax.models.config import from_hf_config
from carr_jax.models.qwen3 import head_matrix, hidden_states
from carr_jax.weights import load_params

GOLDEN = np.load(FILE)


def test_every_case_is_stored():
    assert set(GOLDEN.files) == set(CASES) | {hidden_name(case) for case in LAYERED}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case, tmp_path):
    write_checkpoint(tmp_path / "checkpoint", case)
    config = from_hf_config(tmp_path / "checkpoint")
    params = load_params(tmp_path / "checkpoint", config)
    ids, positions = (x.astype(np.int32) for x in inputs(case))
    hidden = hidden_states(params, config, ids, positions, np.ones_like(ids))
    logits = np.asarray(hidden[0] @ head_matrix(params, config))
    spread = GOLDEN[case].std()
    assert spread > 0.5  # the comparison means something
    # Far out, one bit of an fp32 frequency is an angle of 0.004: the two agree as well as fp32 phases can.
    tolerance = 2e-4 if CASES[case][1] else 2e-5
    np.testing.assert_allclose(logits, GOLDEN[case], atol=tolerance * spread, rtol=1e-4)


@pytest.mark.parametrize("case", LAYERED)
def test_every_layer_equals_transformers(case, tmp_path):
    write_checkpoint(tmp_path / "checkpoint", case)
    config = from_hf_config(tmp_path / "checkpoint")
    params = load_params(tmp_path / "checkpoint", config)
    theirs = torch_states(GOLDEN[hidden_name(case)], params, config)
    ours = our_states(params, config, case)
    assert theirs.shape == ours.shape == (7, 12, 24)
    steps = np.abs(np.diff(theirs, axis=0)).max((1, 2))
    assert (steps > 0.3).all()  # each layer changes the state, so that a wrong one could be seen
    for layers, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4, err_msg=f"after {layers} layers")
