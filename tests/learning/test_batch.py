"""P01, P18, P21, P22, P24 and P25: packing, weights and what is left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.learning import batch as batches
from carr_jax.learning.batch import Example, pack
from carr_jax.records import End, Trajectory


def example(n, advantage=1.0, group="q", mask=None, first=0):
    mask = np.array([0] + [1] * (n - 1) if mask is None else mask, np.int8)
    ids = np.arange(first, first + n, dtype=np.int32)
    return Example(ids, mask, -0.5 * ids.astype(np.float32), advantage, group)


def loss_at_ratio_one(batch):
    """The policy loss when trainer, engine and old policy agree."""
    return -float((batch.weights * batch.advantages).sum())


@pytest.mark.parametrize("normalizer, expected", [("global_tokens", 0.6), ("per_sequence", 0.0)])
def test_length_bias(normalizer, expected):  # P01
    both = [example(3, 1.0), example(9, -1.0)]
    assert loss_at_ratio_one(pack(both, 12, 1, 1, normalizer)) == pytest.approx(expected, abs=1e-6)


def test_per_group_is_a_mean_of_group_token_means():
    examples = [example(3, 1.0, "a"), example(5, 1.0, "a"), example(13, -1.0, "b")]
    batch = pack(examples, 32, 1, 1, "per_group")
    weights = sorted(set(batch.weights[batch.weights > 0].tolist()))
    assert weights == pytest.approx([1 / (2 * 12), 1 / (2 * 6)])
    assert loss_at_ratio_one(batch) == pytest.approx(0.0, abs=1e-6)


def test_unknown_normalizer():
    with pytest.raises(ValueError, match="global_tokens, per_group, per_sequence"):
        pack([example(3)], 4, 1, 1, "tokens")


def test_layout_by_hand():  # P18, P21
    first = Example(np.array([7, 8, 9]), np.array([0, 1, 1]), np.array([0, -0.1, -0.2]), 2.0, "a")
    second = Example(np.array([5, 6]), np.array([0, 1]), np.array([0, -0.3]), -1.0, "b")
    batch = pack([second, first], 6, 1, 2, "global_tokens")
    assert batch.micro_batches == 1 and batch.tokens.shape == (2, 1, 6)
    assert batch.tokens[0, 0].tolist() == [7, 8, 9, 5, 6, 0]
    assert batch.targets[0, 0].tolist() == [8, 9, 0, 6, 0, 0]
    assert batch.segments[0, 0].tolist() == [1, 1, 1, 2, 2, 0]
    assert batch.positions[0, 0].tolist() == [0, 1, 2, 0, 1, 0]
    np.testing.assert_allclose(batch.weights[0, 0], [1 / 3, 1 / 3, 0, 1 / 3, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(batch.engine_logprobs[0, 0], [-0.1, -0.2, 0, -0.3, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(batch.advantages[0, 0], [2, 2, 0, -1, 0, 0])
    assert not any(getattr(batch, k)[1].any() for k in ("tokens", "segments", "weights"))
    assert batches.packing(batch).padding == pytest.approx(1 / 6)


def test_padding_with_eos_trains_one_eos():  # P21
    eos = 0  # the same id as the padding
    batch = pack(
        [Example(np.array([4, 5, eos]), np.array([0, 1, 1]), np.zeros(3), 1.0, "q")], 8, 1, 1, "global_tokens"
    )
    trained = batch.targets[batch.weights > 0]
    assert trained.tolist() == [5, eos]


def test_weights_count_targets_not_segment_ids():  # P22
    examples = [example(3), example(3), example(2)]  # 2 + 2 + 1 targets
    batch = pack(examples, 9, 1, 1, "global_tokens")
    assert np.count_nonzero(batch.weights) == 5
    assert batch.weights.max() == pytest.approx(1 / 5)


def test_truncated_and_masked_sample_is_not_in_the_denominator():  # P24
    complete, masked = example(5, 1.0), example(7, -1.0, mask=[0] * 7)
    batch = pack([complete, masked], 16, 1, 1, "global_tokens")
    assert batch.weights.max() == pytest.approx(1 / 4)
    assert np.count_nonzero(batch.segments) == 5


@pytest.mark.parametrize("normalizer", ["global_tokens", "per_group", "per_sequence"])
def test_a_group_without_spread_changes_nothing(normalizer):  # P25
    group = [example(5, 1.5, "a"), example(4, -0.5, "a"), example(6, 0.0, "a")]
    flat = [example(9, 0.0, "b"), example(3, 0.0, "b")]
    alone, together = (pack(e, 16, 1, 2, normalizer) for e in (group, flat + group))
    for name in ("tokens", "weights", "advantages", "segments"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    assert np.count_nonzero(alone.weights) == 12  # an average sample of a group with spread does count


def test_nothing_to_train_on():  # P23
    batch = pack([example(4, 0.0)], 8, 2, 1, "global_tokens")
    assert batch.micro_batches == 0 and not batch.weights.any()
    assert batches.packing(batch) == (0.0, 0.0, 1.0, 0.0)
    assert batches.micro_batches_needed([], 8, 2) == 1


def test_too_long_sequence_is_named():
    with pytest.raises(ValueError, match="group 'q7' has 9 tokens and does not fit a row of 8"):
        pack([example(9, group="q7")], 8, 1, 1, "global_tokens")


def test_too_many_rows():
    examples = [example(8) for _ in range(5)]
    assert batches.micro_batches_needed(examples, 8, 2) == 3
    assert pack(examples, 8, 2, 3, "global_tokens").micro_batches == 3
    with pytest.raises(ValueError, match="need 3 micro-batches of 2 rows, there are 2"):
        pack(examples, 8, 2, 2, "global_tokens")


@pytest.mark.parametrize(
    "broken, message",
    [
        (Example(np.arange(3), np.array([0, 1]), np.zeros(3), 1.0, "q"), "3 ids, 2 masks"),
        (Example(np.arange(3), np.array([0, 1, 1]), np.array([0, np.nan, 0]), 1.0, "q"), "not finite"),
        (Example(np.arange(3), np.array([0, 1, 1]), np.zeros(3), np.nan, "q"), "not finite"),
    ],
)
def test_broken_examples(broken, message):
    with pytest.raises(ValueError, match=message):
        pack([broken], 8, 1, 1, "global_tokens")


def trajectory(mask, logprobs, routes=None):
    n = len(mask)
    arrays = (np.arange(1, n + 1, dtype=np.int32), np.array(mask, np.int8), np.array(logprobs, np.float32))
    return Trajectory("q1", 3, 1, *arrays, np.zeros(n, np.int32), (), End.ANSWERED, "", routes)


def test_from_trajectory_keeps_arrays_and_names_the_question():
    t = trajectory([0, 1, 0, 1], [0, -1, 0, -0.1])
    e = batches.from_trajectory(t, np.float64(0.25))
    for name in ("ids", "mask", "logprobs"):
        assert getattr(e, name).dtype == getattr(t, name).dtype
        np.testing.assert_array_equal(getattr(e, name), getattr(t, name))
    assert (e.advantage, e.group, e.targets) == (0.25, "q1", 2)


def test_tokens_without_a_logprob_are_no_targets():
    """Neither in the loss nor in its denominator; a trajectory with nothing else contributes nothing."""
    some = batches.from_trajectory(trajectory([0, 1, 1, 0, 1], [0, -1, np.nan, 0, -np.inf]), 1.0)
    assert some.mask.tolist() == [0, 1, 0, 0, 0] and some.logprobs.tolist() == [0, -1, 0, 0, 0]
    none = batches.from_trajectory(trajectory([0, 1, 1], [0, np.nan, np.nan]), -1.0)
    batch = pack([some, none], 16, 1, 1, "global_tokens")
    assert batch.segments.max() == 1 and batch.targets[batch.weights > 0].tolist() == [2]
    assert batch.weights.max() == 1 and np.isfinite(batch.engine_logprobs).all()


def test_each_shard_gets_its_share():
    """Costs n * n: 100 and 36 go to the first shard (rows 0 and 1), 64, 36, 16 and 4 to the second."""
    examples = [example(n, first=100 * n) for n in (10, 8, 6, 6, 4, 2)]
    batch = pack(examples, 12, 4, 1, "global_tokens", shards=2)
    firsts = [[int(t[at]) // 100 for at in np.flatnonzero(p == 0) if t[at]] for t, p in rows_of(batch)]
    assert firsts == [[10], [6], [8, 4], [6, 2]]
    packing = batches.packing(batch, shards=2)
    assert packing.imbalance == pytest.approx(136 / ((136 + 120) / 2))


def rows_of(batch):
    return zip(batch.tokens.reshape(-1, 12), batch.positions.reshape(-1, 12), strict=True)


def test_one_sequence_in_a_row():
    examples = [example(n) for n in (3, 5, 2)]
    assert batches.micro_batches_needed(examples, 12, 2) == 1
    assert batches.micro_batches_needed(examples, 12, 2, together=False) == 2
    batch = pack(examples, 12, 2, 2, "global_tokens", together=False)
    assert batch.micro_batches == 2 and batch.segments.max() == 1
    assert sorted((batch.segments.reshape(-1, 12) > 0).sum(1)) == [0, 2, 3, 5]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 12), st.sampled_from([-1.0, 0.5])), min_size=1, max_size=12))
def test_the_loss_does_not_depend_on_the_layout(drawn):
    examples = [example(n, advantage, i % 3, first=100 * (i + 1)) for i, (n, advantage) in enumerate(drawn)]
    found = set()
    for rows, shards, together in ((1, 1, True), (4, 1, True), (4, 4, True), (4, 2, False)):
        needed = batches.micro_batches_needed(examples, 12, rows, together)
        batch = pack(examples, 12, rows, needed, "per_group", shards, together=together)
        trained = zip(
            *(getattr(batch, k)[batch.weights > 0].tolist() for k in ("targets", "weights", "advantages")),
            strict=True,
        )
        found.add(tuple(sorted(trained)))
    assert len(found) == 1


EXAMPLES = st.lists(
    st.tuples(st.integers(2, 12), st.sampled_from([-1.0, 0.0, 0.5]), st.sampled_from("abc"), st.randoms()),
    min_size=1,
    max_size=9,
)


@settings(max_examples=50, deadline=None)
@given(
    EXAMPLES,
    st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 3)]),
    st.sampled_from(["global_tokens", "per_group", "per_sequence"]),
)
def test_packing(drawn, shape, normalizer):
    """Every kept token once, segments contiguous, weights add up to 1, same input same layout."""
    examples, (rows, shards) = [], shape
    for i, (n, advantage, group, random) in enumerate(drawn):
        mask = [random.randint(0, 1) for _ in range(n)]
        examples.append(example(n, advantage, group, mask, first=100 * (i + 1)))
    needed = batches.micro_batches_needed(examples, 12, rows)
    batch = pack(examples, 12, rows, needed, normalizer, shards)
    kept = {int(e.ids[0]): e for e in batches.contributing(examples)}

    seen = {}
    for tokens, segments, positions, weights, targets in zip(
        *(getattr(batch, k).reshape(-1, 12) for k in ("tokens", "segments", "positions", "weights", "targets")),
        strict=True,
    ):
        assert (np.diff(np.flatnonzero(segments)) == 1).all() and (np.diff(segments[segments > 0]) >= 0).all()
        for s in range(1, segments.max() + 1):
            at = segments == s
            e = kept[int(tokens[at][0])]
            assert e.group not in seen or int(tokens[at][0]) not in seen
            seen[int(tokens[at][0])] = e
            np.testing.assert_array_equal(tokens[at], e.ids)
            np.testing.assert_array_equal(positions[at], np.arange(e.ids.size))
            np.testing.assert_array_equal(targets[at][:-1], e.ids[1:])
            np.testing.assert_array_equal(weights[at] > 0, np.append(e.mask[1:] > 0, False))
        assert not weights[segments == 0].any()
    assert seen.keys() == kept.keys()
    assert float(batch.weights.sum(dtype=np.float64)) == pytest.approx(1.0 if kept else 0.0, abs=1e-5)
    again = pack(examples, 12, rows, needed, normalizer, shards)
    np.testing.assert_array_equal(batch.tokens, again.tokens)
