"""MO-07, MO-09: rows of chosen experts stay with their tokens over turns, aborts and gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.agent.routes import Routes, is_choice

LAYERS, CHOSEN = 2, 3


def rows(n, first=0):
    """Row i is recognised by i: expert numbers i, i + 1, i + 2, in the second layer in another order."""
    one = first + np.arange(n)[:, None] + np.arange(CHOSEN)
    return np.stack([one, one[:, ::-1]], axis=1).astype(np.int16)


def unknown(n):
    return np.full((n, LAYERS, CHOSEN), -1, np.int16)


def test_an_abort_after_three_tokens_and_two_more_after_the_resume():
    """Prompt of 4: the first part reports 4 + 3 - 1 rows, the resumed call 4 + 3 + 2 - 1; tokens - 1 in all."""
    routes = Routes()
    routes.extend(rows(6), 7)
    routes.extend(rows(8), 9)
    whole = routes.complete(9)
    assert whole.dtype == np.int16 and whole.shape == (9, LAYERS, CHOSEN)
    np.testing.assert_array_equal(whole[:8], rows(8))
    np.testing.assert_array_equal(whole[8:], unknown(1))


def test_earlier_rows_stay_and_the_boundary_comes_from_the_next_prefill():
    """The second call sees other choices for all tokens: only the rows that it adds are taken from it."""
    routes = Routes()
    routes.extend(rows(5), 6)  # prompt 4, sampled 2
    routes.extend(rows(11, first=100), 12)  # observation 3, sampled 3
    whole = routes.complete(12)
    np.testing.assert_array_equal(whole[:5], rows(5))
    np.testing.assert_array_equal(
        whole[5:11], rows(11, first=100)[5:]
    )  # from token 5, the last sampled one, on


def test_an_observation_that_nobody_read_is_unknown():
    routes = Routes()
    routes.extend(rows(5), 6)
    whole = routes.complete(9)  # an observation of 3 tokens, and then the engine failed
    np.testing.assert_array_equal(whole, np.concatenate([rows(5), unknown(4)]))


def test_an_abort_without_a_token_loses_nothing():
    routes = Routes()
    routes.extend(rows(5), 6)
    routes.extend(rows(8), 9)  # an observation of 3 tokens was prefilled, nothing was sampled
    routes.extend(rows(8), 9)
    routes.extend(rows(10), 11)
    np.testing.assert_array_equal(routes.complete(11)[:10], rows(10))


BAD_REPLIES = {
    "none": None,
    "other layers": rows(8)[:, :1],
    "other number of experts": rows(8)[..., :2],
    "flat": rows(8).reshape(8, -1),
    "a row for the last token too": rows(9),
    "floats": rows(8).astype(np.float32),
}


@pytest.mark.parametrize("reply", BAD_REPLIES.values(), ids=list(BAD_REPLIES))
def test_a_reply_that_cannot_be_used_is_unknown(reply):
    routes = Routes()
    routes.extend(rows(4), 5)
    routes.extend(reply, 9)
    routes.extend(rows(11), 12)
    np.testing.assert_array_equal(routes.complete(12)[:11], np.concatenate([rows(4), unknown(4), rows(11)[8:]]))


def test_too_few_rows_leave_the_others_unknown():
    routes = Routes()
    routes.extend(rows(4), 5)
    routes.extend(rows(6), 9)
    routes.extend(rows(3), 11)  # fewer than are there already
    np.testing.assert_array_equal(routes.complete(11), np.concatenate([rows(6), unknown(5)]))


def test_the_first_reply_with_routes_gives_all_rows_up_to_it():
    routes = Routes()
    routes.extend(None, 5)
    assert routes.complete(5) is None
    routes.extend(rows(8), 9)
    np.testing.assert_array_equal(routes.complete(9)[:8], rows(8))


def test_rows_that_were_never_filled_are_unknown():
    """Zeros in every place, an expert named twice, a negative number in any place: no choice of k experts."""
    reply = rows(6)
    reply[1], reply[2, 1], reply[3, 0] = 0, [4, 9, 4], [5, -1, 7]
    routes = Routes()
    routes.extend(reply, 7)
    whole = routes.complete(7)
    assert (whole[1] == -1).all() and (whole[2, 1] == -1).all() and (whole[3, 0] == -1).all()
    np.testing.assert_array_equal(whole[2, 0], reply[2, 0])  # of the same token, the other layer
    np.testing.assert_array_equal(whole[[0, 4, 5]], reply[[0, 4, 5]])


def test_is_choice():
    assert is_choice(np.array([[3, 1], [2, 2], [-1, 0], [0, 255]])).tolist() == [True, False, False, True]
    assert is_choice(np.array([[0], [-1]])).tolist() == [True, False]


def test_the_reply_is_not_kept_alive():
    """An engine reports whole sequences: kept, a hundred turns would hold a hundred times the memory."""
    routes, reply = Routes(), rows(8)
    routes.extend(reply, 9)
    reply[:] = 77
    np.testing.assert_array_equal(routes.complete(9)[:8], rows(8))
    assert routes.complete(9).base is None


def test_an_episode_goes_on_from_its_trajectory():
    routes = Routes()
    routes.extend(rows(5), 6)
    again = Routes.of(routes.complete(9))  # saved with an observation of three tokens
    again.extend(rows(11), 12)
    want = np.concatenate([rows(11), unknown(1)])  # those of the observation come with the next call
    np.testing.assert_array_equal(again.complete(12), want)
    np.testing.assert_array_equal(again.complete(4), np.concatenate([rows(3), unknown(1)]))  # up to a mark
    assert Routes.of(None).complete(9) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=8))
def test_every_row_belongs_to_its_token(calls):
    """Any course of calls (tokens observed, sampled, rows that the reply lacks): rows are right or unknown."""
    routes, length, known = Routes(), 3, set()
    covered = 0
    for observed, sampled, lacking in calls:
        length += observed + sampled
        reply = rows(max(length - 1 - lacking, 0))
        known |= set(range(covered, len(reply)))
        covered = length - 1
        routes.extend(reply, length)
    whole = routes.complete(length)
    assert len(whole) == length
    for i, row in enumerate(whole):
        np.testing.assert_array_equal(row, rows(1, i)[0] if i in known else unknown(1)[0])
