import pytest

from carr_jax.records import Question
from carr_jax.rewards.entities import entity_match

QUESTION = Question(
    "q",
    "Who directed the film shot in Old York?",
    "Ana Sá",
    entities={"E0": ("Ana Sá", "Anna Sa"), "E1": ("Oslo",), "E2": ("Old York",)},
)


@pytest.mark.parametrize(
    ("thoughts", "exact", "robust"),
    [
        (("Ana Sá lives in Oslo.",), 1.0, 1.0),
        (("perhaps Ana Sá", "no idea"), 0.5, 0.5),
        (("ANNA SA, i think",), 0.0, 0.5),
        (("Oslobodjenje",), 0.5, 0.0),  # the paper's exact string also matches inside a word
        (("Old York",), 0.0, 0.0),  # stands in the question: not counted
        ((), 0.0, 0.0),
    ],
)
def test_share_of_gold_entities(thoughts, exact, robust):
    assert entity_match(QUESTION, thoughts) == exact
    assert entity_match(QUESTION, thoughts, robust=True) == robust


def test_no_hidden_entity_is_zero():
    assert entity_match(Question("q", "Is Oslo a city?", "yes", entities={"E0": ("Oslo",)}), ("Oslo",)) == 0.0
    assert entity_match(Question("q", "?", "X"), ("X",)) == 0.0
