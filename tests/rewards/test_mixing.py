import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.rewards.mixing import MODES, OF_MAXIMUM, mix_rewards

O8 = [1, 1, 0, 0, 0, 0, 0, 0]
R8 = [0.6, 0.3, 0.9, 0.1, 0, 0, 0, 0]


def mix(mode, outcomes, rubrics, matches=None, known=None, failed=None, alpha=0.3):
    n = len(outcomes)
    matches = np.zeros(n) if matches is None else matches
    known = np.ones(n, bool) if known is None else known
    failed = np.zeros(n, bool) if failed is None else failed
    return mix_rewards(mode, outcomes, rubrics, matches, known, failed, alpha)


@pytest.mark.parametrize(
    ("mode", "first_four"),
    [
        ("grpo", [1, 1, 0, 0]),
        *((mode, [0.9, 0.8, 0, 0]) for mode in OF_MAXIMUM),
        ("carr_released", [0.88, 0.79, 0, 0]),
        ("carr_all_rollouts", [0.9, 0.8, 0.3, 0.1 / 0.9 * 0.3]),
        ("e_grpo", [1, 1, 0.3, 0.1 / 0.9 * 0.3]),
    ],
)
def test_worked_vector_of_the_reference(mode, first_four):
    np.testing.assert_allclose(mix(mode, O8, R8, matches=R8), [*first_four, 0, 0, 0, 0], rtol=1e-12)


def test_p10_numbers():
    outcomes, rubrics = [1, 1, 0, 0], [0.4, 0.2, 0.8, 0]
    np.testing.assert_allclose(mix("carr_paper", outcomes, rubrics), [0.85, 0.775, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(mix("carr_released", outcomes, rubrics), [0.82, 0.76, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(mix("carr_paper", [1, 0], [0, 0]), [0.7, 0], rtol=1e-12)


def test_unknown_leaves_the_group_and_its_maximum():
    got = mix("carr_paper", [1, 0, 1], [0.5, 1.0, 0.25], known=np.array([True, False, True]))
    np.testing.assert_allclose(got, [1.0, np.nan, 0.85], rtol=1e-12)


def test_failed_is_zero_whatever_its_components():
    got = mix("e_grpo", [1, 0, 0], [0, 0, 0], matches=[1, 1, 0.5], failed=np.array([True, False, False]))
    np.testing.assert_allclose(got, [0, 0.3, 0.15], rtol=1e-12)


def test_no_known_sample_is_all_nan():
    assert np.isnan(mix("carr_paper", [0, 0], [0, 0], known=np.zeros(2, bool))).all()


def test_unjudged_rubrics_pass_only_where_they_cannot_matter():
    nan = np.nan
    np.testing.assert_array_equal(mix("carr_paper", [0, 0], [nan, nan]), [0, 0])
    np.testing.assert_array_equal(mix("grpo", [1, 0], [nan, nan]), [1, 0])
    np.testing.assert_allclose(mix("carr_released", [1, 0], [0.5, nan]), [0.85, 0])
    for mode in OF_MAXIMUM:
        np.testing.assert_allclose(mix(mode, [1, 1, 0], [0.25, 0.5, nan]), [0.85, 1, 0])
        with pytest.raises(ValueError, match="not judged"):
            mix(mode, [1, 0], [nan, 0.5])
    with pytest.raises(ValueError, match="not judged"):
        mix("carr_all_rollouts", [1, 0], [0.5, nan])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("carr", [1], [0]), "carr_paper, carr_released"),
        (("grpo", [1, 0], [0]), "shape"),
        (("grpo", [1.5], [0]), "must lie in"),
        (("carr_paper", [1.0], [-0.1]), "must lie in"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, says):
    with pytest.raises(ValueError, match=says):
        mix(*arguments)


share = st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0])
sample = st.tuples(st.sampled_from([0.0, 1.0]), share, share, st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODES), st.lists(sample, min_size=1, max_size=8), st.randoms())
def test_permuting_samples_permutes_rewards(mode, rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    columns = [np.array(c) for c in zip(*rows, strict=True)]
    straight = mix_rewards(mode, *columns)
    shuffled = mix_rewards(mode, *(c[order] for c in columns))
    np.testing.assert_array_equal(straight[order], shuffled)
    known, failed = columns[3], columns[4]
    np.testing.assert_array_equal(np.isnan(straight), ~known)
    assert (straight[known & failed] == 0).all()
    assert ((straight[known] >= 0) & (straight[known] <= 1)).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), share), min_size=2, max_size=8))
def test_a_right_answer_always_beats_a_wrong_one(rows):
    outcomes, rubrics = (np.array(c) for c in zip(*rows, strict=True))
    for mode in (m for m in MODES if m != "grpo"):
        got = mix(mode, outcomes, rubrics, matches=rubrics)
        assert (got[outcomes == 1] >= 0.7 - 1e-12).all()
        assert (got[outcomes == 0] <= 0.3 + 1e-12).all()
