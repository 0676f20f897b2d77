import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.records import Rubric
from carr_jax.rewards import rubrics


def test_entity_ids_are_ordered_by_number():
    given_rubrics = [Rubric("<E10> knows <E2>."), Rubric("<E0> is in <E10>.")]
    assert rubrics.entity_ids(given_rubrics) == ("E0", "E2", "E10")


def test_filling_is_simultaneous():
    names = {"E0": "<E1>", "E1": "Bob \\1 <E0>"}
    assert rubrics.fill("<E0> knows <E1> and <E2>.", names) == "<E1> knows Bob \\1 <E0> and <E2>."
    assert rubrics.fill("<E1> is not <E10>.", {"E1": "a", "E10": "b"}) == "a is not b."
    assert rubrics.fill("<e0> <E> <E0x>", {"E0": "a"}) == "<e0> <E> <E0x>"


def reachable(entity_sets, supported):
    """Oracle: grow the set of entities until nothing changes."""
    seen = {"E0"}
    for _ in entity_sets:
        for ids, ok in zip(entity_sets, supported, strict=True):
            if ok and seen & set(ids):
                seen |= set(ids)
    return tuple(bool(ok and seen & set(ids)) for ids, ok in zip(entity_sets, supported, strict=True))


ids = st.sets(st.sampled_from(["E0", "E1", "E2", "E3", "E4"]), max_size=3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ids, st.booleans()), max_size=8))
def test_connectivity_against_a_fixed_point(rows):
    sets, flags = [r[0] for r in rows], [r[1] for r in rows]
    assert rubrics.connected(sets, flags) == reachable(sets, flags)


def test_a_rubric_without_entities_is_never_reached():
    assert rubrics.connected([(), ("E0",)], [True, True]) == (False, True)


CHAIN = [("E0", "E1"), ("E1", "E2"), ("E2", "E3"), ("E4", "E5")]


def test_soft_connectivity_by_hand():
    whole = [True, True, True, True]
    assert rubrics.component_credits(CHAIN, whole) == (1.0, 1.0, 1.0, 0.25)
    assert rubrics.component_credits(CHAIN, [False, True, True, True]) == (0.0, 0.5, 0.5, 0.25)
    assert rubrics.depth_credits(CHAIN, whole) == (1.0, 0.5, 0.25, 0.0)
    assert rubrics.depth_credits(CHAIN, [True, False, True, True]) == (1.0, 0.0, 0.0, 0.0)
    assert rubrics.depth_credits([*CHAIN, ("E0", "E3")], [True, True, True, True, True])[2] == 0.5


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ids, st.booleans()), min_size=1, max_size=8))
def test_soft_credits_agree_with_connectivity_where_it_speaks(rows):
    sets, flags = [r[0] for r in rows], [r[1] for r in rows]
    reached = rubrics.connected(sets, flags)
    assert [c > 0 for c in rubrics.depth_credits(sets, flags)] == list(reached)
    soft = rubrics.component_credits(sets, flags)
    assert all(credit == 1.0 for credit, yes in zip(soft, reached, strict=True) if yes)
    assert all(credit == 0.0 for credit, ids, yes in zip(soft, sets, flags, strict=True) if not (yes and ids))


@pytest.mark.parametrize(
    ("relation", "first", "second", "holds"),
    [
        ("earlier", "28 April 1979", "July 2, 1980", True),
        ("later", "28 April 1979", "July 2, 1980", False),
        ("earlier", "1931-05-12", "13 May 1931", True),
        ("later", "2014", "13 January 2013", True),
        ("later", "2014", "13 January 2014", False),  # not determined
        ("earlier", "1950", "1950", False),
        ("later", "2,500", "1,900", True),
        ("earlier", "-5", "3", True),
        ("earlier", "long ago", "1950", False),
    ],
)
def test_comparisons(relation, first, second, holds):
    assert rubrics.comparison_holds(relation, first, second) is holds


def test_an_unknown_relation_is_an_error():
    with pytest.raises(ValueError, match="taller"):
        rubrics.comparison_holds("taller", "1", "2")


def test_literal_words():
    assert rubrics.literal_words("The nationality of Marie of Burgundy is <E1>.") == {"marie", "burgundy"}
    assert rubrics.literal_words('For <E1>, "capital" is <E0>.') == frozenset()
