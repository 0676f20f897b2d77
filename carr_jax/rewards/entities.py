"""E-GRPO's entity match (arXiv 2510.24694): how many gold entities the policy had in mind."""

from __future__ import annotations

from collections.abc import Sequence

from carr_jax.records import Question
from carr_jax.rewards import matching

VARIANTS = "variants"  # key of `Question.metadata`: {entity: other names that a model wrote}


def entity_match(question: Question, thoughts: Sequence[str], *, robust: bool = False) -> float:
    """gamma: the share of gold entities that stand in some thought, in [0, 1]; 0 when there is none to find.

    The paper looks for the exact string of the canonical name; `robust` (its appendix H) takes any accepted
    name, and any that `variants.py` had a model write, and compares folded words.  An entity that the question
    already names is not counted.
    """
    hidden = hidden_entities(question)
    if not hidden:
        return 0.0
    if robust:
        variants = question.metadata.get(VARIANTS, {})
        hidden = {entity: (*names, *variants.get(entity, ())) for entity, names in hidden.items()}
    found = _robust if robust else _exact
    return sum(any(found(names, thought) for thought in thoughts) for names in hidden.values()) / len(hidden)


def hidden_entities(question: Question) -> dict[str, tuple[str, ...]]:
    """The accepted names of each gold entity that the question does not name."""
    return {
        entity: names
        for entity, names in question.entities.items()
        if names and not matching.mentions(question.question, names)
    }


def _exact(names: Sequence[str], thought: str) -> bool:
    return names[0] in thought


def _robust(names: Sequence[str], thought: str) -> bool:
    return matching.mentions(thought, names) is not None
