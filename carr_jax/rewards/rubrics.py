"""Rubrics: filling placeholders, the evidence graph of CaRR, and comparisons that stand on no page."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import networkx

from carr_jax.records import PLACEHOLDER, Rubric
from carr_jax.rewards import matching

ANSWER = "E0"
# Capitalised words that a statement may hold without naming anything.
_STATEMENT_WORDS = frozenset(
    re.findall(
        r"[a-z]+",
        """a after an and are as at before by did do does during for from he her his how i if in is it its of on
        or she that the their they this to was were what when where which who whom whose why with""",
    )
)
_WORD = re.compile(r"[^\W_]+")


def entity_ids(rubrics: Sequence[Rubric]) -> tuple[str, ...]:
    """The placeholder ids of all rubrics, by number: ("E0", "E1", ...)."""
    found = {entity for rubric in rubrics for entity in rubric.entities}
    return tuple(sorted(found, key=lambda entity: (int(entity[1:]), entity)))


def fill(text: str, names: Mapping[str, str | None]) -> str:
    """`text` with every placeholder that has a name replaced, all at once: a name is never filled itself."""
    return PLACEHOLDER.sub(lambda match: names.get(match[1]) or match[0], text)


def identified(rubric: Rubric, names: Mapping[str, str | None]) -> bool:
    """Step 1: does every entity of the rubric have a name?"""
    return all(names.get(entity) for entity in rubric.entities)


def connected(entities: Sequence[Collection[str]], supported: Sequence[bool]) -> tuple[bool, ...]:
    """Step 3: which supported rubrics are reachable from E0 in the evidence graph.

    `entities[i]` are the ids of rubric i.
    """
    reachable = networkx.node_connected_component(_evidence(entities, supported), ANSWER)
    return tuple(index in reachable for index in range(len(entities)))


def component_credits(entities: Sequence[Collection[str]], supported: Sequence[bool]) -> tuple[float, ...]:
    """Soft step 3: 1 for a rubric that `connected` holds for, else the share of all rubrics that hang together
    with it (itself included), 0 when it is not supported.  Not of the paper."""
    credits = [0.0] * len(entities)
    for component in networkx.connected_components(_evidence(entities, supported)):
        indices = [node for node in component if isinstance(node, int)]
        for index in indices:
            credits[index] = 1.0 if ANSWER in component else len(indices) / len(entities)
    return tuple(credits)


def depth_credits(entities: Sequence[Collection[str]], supported: Sequence[bool]) -> tuple[float, ...]:
    """Step 3 by distance: half as much with each rubric that lies between a rubric and E0, 0 when it is not
    reachable.  Not of the paper."""
    steps = networkx.single_source_shortest_path_length(_evidence(entities, supported), ANSWER)
    return tuple(0.5 ** (steps[i] // 2) if i in steps else 0.0 for i in range(len(entities)))


def _evidence(entities: Sequence[Collection[str]], supported: Sequence[bool]) -> networkx.Graph:
    """The graph of supported rubrics (integer nodes), their entities (string nodes), and E0."""
    graph = networkx.Graph()
    graph.add_node(ANSWER)
    graph.add_edges_from(
        (index, entity)
        for index, (ids, holds) in enumerate(zip(entities, supported, strict=True))
        if holds
        for entity in ids
    )
    return graph


def comparison_holds(relation: str, first: str, second: str) -> bool:
    """Whether `first` is "earlier" or "later" than `second`; False when the two cannot be put in order.

    Raises ValueError for another relation.
    """
    if relation not in ("earlier", "later"):
        raise ValueError(f"rubric relation {relation!r} is not one of fact, earlier, later")
    order = matching.compare(first, second)
    return order is not None and order == (-1 if relation == "earlier" else 1)


def literal_words(text: str) -> frozenset[str]:
    """The folded words of literal names in `text`: outside placeholders, capitalised or with digits."""
    words = _WORD.findall(PLACEHOLDER.sub(" ", text))
    names = (word for word in words if word[0].isupper() or any(c.isdigit() for c in word))
    return frozenset(w for word in names for w in matching.fold(word).split() if w not in _STATEMENT_WORDS)
