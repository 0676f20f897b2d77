"""A question before it has words: facts of a graph, and which of their entities the question hides.

Whoever reads the question knows the clues but not the hidden names.  So a draft is a pattern: it asks a good
question when the graph has exactly one way to fill in what is hidden.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import networkx

from carr_jax.data.graph import Fact, Graph, vaguer

_PATIENCE = 5_000  # facts that are tried before a pattern counts as too loose
ASKED = "?"  # the node of the value that is asked for, in the graph of a draft


@dataclass(frozen=True)
class Clue:
    """A fact that the question tells.

    `told` is how it tells a value, the value itself or a vaguer one; "" for the value that is asked for, and
    for facts about two entities.
    """

    fact: Fact
    told: str = ""

    @property
    def ends(self) -> tuple[str, ...]:
        """The entities of the fact, and ASKED for the value that is the answer."""
        if not self.fact.is_value:
            return (self.fact.subject, self.fact.object)
        return (self.fact.subject,) if self.told else (self.fact.subject, ASKED)


@dataclass(frozen=True)
class Draft:
    """`answer` is the id of an entity, or ASKED; `named` are the entities that the question names."""

    strategy: str
    answer: str
    clues: tuple[Clue, ...]
    named: frozenset[str] = frozenset()

    @property
    def hidden(self) -> tuple[str, ...]:
        """What the question does not name, the answer first, then in the order of the clues."""
        ends = (end for clue in self.clues for end in clue.ends if end not in self.named)
        return tuple(dict.fromkeys((self.answer, *ends)))

    @property
    def asked_value(self) -> str:
        """The answer where it is a value."""
        return next(clue.fact.object for clue in self.clues if ASKED in clue.ends)

    def plus(self, *clues: Clue) -> Draft:
        """With more clues; what is told already is not told again."""
        told = {clue.fact for clue in self.clues}
        return dataclasses.replace(self, clues=(*self.clues, *(c for c in clues if c.fact not in told)))

    def renamed(self, named: frozenset[str]) -> Draft:
        return dataclasses.replace(self, named=named)


def network(draft: Draft) -> networkx.Graph:
    """The entities of a draft, tied by its clues."""
    ties = networkx.Graph()
    ties.add_node(draft.answer)
    for clue in draft.clues:
        networkx.add_path(ties, clue.ends) if len(clue.ends) > 1 else ties.add_node(clue.ends[0])
    return ties


def in_order(draft: Draft) -> Draft:
    """With the clues as somebody solves them: what is farthest from the answer first.

    Raises networkx.NetworkXNoPath when a clue is not tied to the answer.
    """
    ties = network(draft)

    def distance(clue: Clue) -> float:
        far = max(networkx.shortest_path_length(ties, end, draft.answer) for end in clue.ends)
        return far + 0.5 * (len(clue.ends) == 1)

    return dataclasses.replace(draft, clues=tuple(sorted(draft.clues, key=distance, reverse=True)))


def described(graph: Graph, entity: str, rng: Random) -> list[Clue]:
    """The attributes of an entity as clues, in any order."""
    values = [Clue(fact, fact.object) for fact in graph.values(entity)]
    return rng.sample(values, len(values))


# -------------------------------------------------------------------------------------------------- uniqueness


def is_unique(graph: Graph, draft: Draft) -> bool:
    """Whether the clues leave one choice for everything that is hidden.

    A draft is not unique either when this takes too long to find out, or when it names what shares its name.
    """
    if not all(graph.names_one(entity) for entity in draft.named):
        return False
    found = set()
    bound = {entity: entity for entity in draft.named}
    roots = set(draft.hidden) - {c.fact.object for c in draft.clues if not c.fact.is_value}
    for tries, solution in enumerate(_solutions(graph, draft.clues, bound, roots - {ASKED})):
        if solution is not None:
            found.add(tuple(sorted(solution.items())))
        if len(found) > 1 or tries > _PATIENCE:
            return False
    return len(found) == 1


def _solutions(
    graph: Graph, clues: Sequence[Clue], bound: Mapping[str, str], roots: set[str]
) -> Iterator[Mapping[str, str] | None]:
    """Each way to fill in what is hidden, and None for each fact that was tried.

    `roots` are told by their kind; what is found as the object of a fact is not.  The clue with the fewest
    facts that fit goes first.
    """
    if not clues:
        yield bound
        return
    clue = min(clues, key=lambda clue: len(_candidates(graph, clue, bound)))
    rest = [other for other in clues if other is not clue]
    for fact in _candidates(graph, clue, bound):
        yield None
        ends = dict(zip(clue.ends, (fact.subject, fact.object), strict=False))
        same_kind = all(
            graph.entities[there].kind == graph.entities[end].kind
            for end, there in ends.items()
            if end in roots
        )
        if same_kind and all(bound.get(end, there) == there for end, there in ends.items()):
            yield from _solutions(graph, rest, {**bound, **ends}, roots)


def _candidates(graph: Graph, clue: Clue, bound: Mapping[str, str]) -> Sequence[Fact]:
    """The facts that may be meant by a clue, as far as one of its ends narrows them down."""
    relation = clue.fact.relation
    if subject := bound.get(clue.fact.subject):
        facts = graph.about(subject, relation)
        return [f for f in facts if clue.told in (f.object, *vaguer(f.object))] if clue.told else facts
    object = clue.told or bound.get(clue.ends[-1])
    return graph.to(relation, object) if object else graph.of_relation(relation)
