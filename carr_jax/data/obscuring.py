"""Makes the question of a draft vaguer without a model: names become descriptions, dates become decades.

Every change is kept only if the graph still has one answer, so the question stays answerable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random

from carr_jax.data.drafts import Clue, Draft, described, in_order, is_unique
from carr_jax.data.graph import Graph, vaguer

_FEWEST = 2  # attributes that tell an entity: with one alone a reader would have to look at too many


def obscured(graph: Graph, draft: Draft, rng: Random) -> Draft:
    """With as few names as it takes, and each date as vague as it may be."""
    for entity in rng.sample(sorted(draft.named), len(draft.named)):
        draft = next((d for d in _without_name(graph, draft, entity, rng) if is_unique(graph, d)), draft)
    for index in rng.sample(range(len(draft.clues)), len(draft.clues)):
        draft = next((d for d in _vaguer_dates(draft, index) if is_unique(graph, d)), draft)
    return in_order(draft)


def _without_name(graph: Graph, draft: Draft, entity: str, rng: Random) -> Iterator[Draft]:
    """The entity told by its kind and two attributes, or by more."""
    draft = draft.renamed(draft.named - {entity})
    secret = draft.asked_value if draft.answer not in graph.entities else ""
    clues = [clue for clue in described(graph, entity, rng) if clue.told != secret]
    for count in range(min(_FEWEST, len(clues)) or 1, len(clues) + 1):
        yield draft.plus(*clues[:count])


def _vaguer_dates(draft: Draft, index: int) -> Iterator[Draft]:
    """The date of a clue told by its century, then by its decade."""
    clue = draft.clues[index]
    for told in reversed(vaguer(clue.told)):
        clues = (*draft.clues[:index], Clue(clue.fact, told), *draft.clues[index + 1 :])
        yield dataclasses.replace(draft, clues=clues)
