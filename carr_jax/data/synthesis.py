"""Strategies that draft hard questions from a graph, each a pure function of the graph and a random source.

    walk        a random walk from a named entity to the answer (the path that DeepDive starts from)
    attributes  a walk whose entities are told by their attributes, not by name (DeepDive, arXiv 2509.10446)
    inject      a one-hop question whose named entity is replaced by a statement about it, again and again,
                while details are made vague (injection and fuzzing of ASearcher, arXiv 2508.07976)
    subgraph    a connected part of the graph with branches; one entity is asked for by everything that is known
                of it (SailorFog-QA of WebSailor, arXiv 2507.02592)

A strategy gives None where the graph does not let it go on.  Whether what it gives has one answer is for
`drafts.is_unique` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from carr_jax.data.drafts import ASKED, Clue, Draft, described, in_order, is_unique
from carr_jax.data.graph import Fact, Graph, vaguer, value_type


@dataclass(frozen=True)
class Shape:
    """What a question looks like.

    `hops` is the number of facts between two entities that it tells, `most_links` the most that an entity may
    have: in hubs such as countries all walks meet, and most answers would be one of them.
    """

    hops: int = 3
    most_links: int = 40


Strategy = Callable[[Graph, Random, str, Shape], Draft | None]


def walk(graph: Graph, rng: Random, start: str, shape: Shape) -> Draft | None:
    """A walk from `start`, which is named, to an entity, or to a date or number of the last one."""
    steps = next(_paths(graph, rng, start, shape.hops, shape.most_links, (start,), ""), None)
    if steps is None:
        return None
    here = start
    for fact in steps:
        here = ASKED if fact.is_value else fact.other(here)
    return Draft("walk", here, tuple(map(Clue, steps)), frozenset({start}))


def attributes(graph: Graph, rng: Random, start: str, shape: Shape) -> Draft | None:
    """A walk that names nobody: `start` is told by all its attributes, the others on the way by one each."""
    base = walk(graph, rng, start, shape)
    if base is None:
        return None
    clues = described(graph, start, rng)
    for entity in base.hidden:
        if entity not in (base.answer, ASKED):
            clues += described(graph, entity, rng)[:1]
    told = [clue for clue in clues if not _tells_the_answer(clue, base)]
    return in_order(Draft("attributes", base.answer, base.clues).plus(*told))


def inject(graph: Graph, rng: Random, start: str, shape: Shape) -> Draft | None:
    """Begins with a fact about `start`; each round hides a named entity behind a statement about it."""
    draft = walk(graph, rng, start, Shape(1, shape.most_links))
    for _ in range(shape.hops - 1):
        if draft is None:
            return None
        draft = _injected(graph, rng, draft, shape)
        if draft is not None and rng.random() < 0.5:
            draft = _fuzzed(graph, rng, draft)
    return draft and in_order(Draft("inject", draft.answer, draft.clues, draft.named))


def subgraph(graph: Graph, rng: Random, start: str, shape: Shape) -> Draft | None:
    """Everything that a sampled part of the graph says of `start`; only ends far from it are named.

    What stands beside the answer would lead to its page at once, so it is told by attributes where it leads no
    further.
    """
    clues, depth = _sampled(graph, rng, start, shape)
    if sum(start in clue.ends for clue in clues) < 2 or max(depth.values()) < 2:
        return None
    ends = [entity for entity in depth if sum(entity in clue.ends for clue in clues) == 1]
    near = [entity for entity in ends if depth[entity] == 1]
    told = [clue for entity in near for clue in described(graph, entity, rng)[:2]]
    named = frozenset(entity for entity in ends if depth[entity] > 1)
    return _sharpened(graph, rng, Draft("subgraph", start, tuple(clues), named).plus(*told))


STRATEGIES: dict[str, Strategy] = {f.__name__: f for f in (walk, attributes, inject, subgraph)}


# -------------------------------------------------------------------------------------------------------- walks


def _paths(
    graph: Graph, rng: Random, here: str, hops: int, most_links: int, visited: Sequence[str], page: str
) -> Iterator[list[Fact]]:
    """Walks of `hops` facts, each with one way to go; a dead end is left the way it was entered.

    Two facts of one page never follow each other: one look would take both steps.
    """
    for fact in _moves(graph, rng, here, most_links):
        if fact.url == page or (fact.is_value and hops > 1):
            continue
        if not fact.is_value and (there := fact.other(here)) in visited:
            continue
        if hops == 1:
            yield [fact]
        else:
            rest = _paths(graph, rng, there, hops - 1, most_links, (*visited, there), fact.url)
            yield from ([fact, *further] for further in rest)


def _moves(graph: Graph, rng: Random, here: str, most_links: int) -> list[Fact]:
    """The facts that lead from an entity to exactly one other, or to a date or number, in any order."""
    facts = [
        fact
        for fact in graph.links(here)
        if _may_visit(graph, here, fact.other(here), most_links)
        and len(graph.about(here, fact.relation) if fact.subject == here else graph.to(fact.relation, here))
        == 1
    ]
    facts += [
        fact
        for fact in graph.values(here)
        if value_type(fact.object)
        and graph.is_noun(fact.relation)
        and len(graph.about(here, fact.relation)) == 1
    ]
    return rng.sample(facts, len(facts))


def _may_visit(graph: Graph, here: str, there: str, most_links: int) -> bool:
    same_split = graph.entities[here].split == graph.entities[there].split
    return there != here and same_split and len(graph.links(there)) <= most_links


def _tells_the_answer(clue: Clue, draft: Draft) -> bool:
    return draft.answer == ASKED and clue.told == draft.asked_value


# ------------------------------------------------------------------------------------------ injection, fuzzing


def _injected(graph: Graph, rng: Random, draft: Draft, shape: Shape) -> Draft | None:
    """With one named entity hidden behind a fact that ties it to another, which is named instead."""
    entity = rng.choice(sorted(draft.named))
    used = {end for clue in draft.clues for end in clue.ends}
    facts = graph.links(entity)
    for fact in rng.sample(facts, len(facts)):
        there = fact.other(entity)
        if there in used or not _may_visit(graph, entity, there, shape.most_links):
            continue
        named = draft.named - {entity} | {there}
        candidate = Draft(draft.strategy, draft.answer, (Clue(fact), *draft.clues), named)
        if is_unique(graph, candidate):
            return candidate
    return None


def _fuzzed(graph: Graph, rng: Random, draft: Draft) -> Draft:
    """With one hidden entity told by a vague date: a detail more to check, and none to search for."""
    hidden = [entity for entity in draft.hidden if entity not in (draft.answer, ASKED)]
    dates = [fact for entity in hidden for fact in graph.values(entity) if vaguer(fact.object)]
    if not dates:
        return draft
    fact = rng.choice(dates)
    if draft.answer == ASKED and fact.object == draft.asked_value:
        return draft
    return draft.plus(Clue(fact, rng.choice(vaguer(fact.object))))


# ---------------------------------------------------------------------------------------------------- subgraphs


def _sampled(graph: Graph, rng: Random, start: str, shape: Shape) -> tuple[list[Clue], dict[str, int]]:
    """Facts that tie a growing set of entities together, and how far each is from `start`.

    The first two facts are about `start`; each further one makes the set grow at its rim, and at last what
    ties two of the set together is added, too.
    """
    depth, clues = {start: 0}, []
    for number in range(shape.hops + 1):
        rim = [start] if number < 2 else [e for e in depth if depth[e]]
        facts = [
            (here, fact)
            for here in rim
            for fact in graph.links(here)
            if fact.other(here) not in depth and _may_visit(graph, here, fact.other(here), shape.most_links)
        ]
        if not facts:
            break
        here, fact = rng.choice(facts)
        depth[fact.other(here)] = depth[here] + 1
        clues.append(Clue(fact))
    ties = [f for e in depth for f in graph.links(e) if f.subject == e and f.object in depth and f.object != e]
    return list(dict.fromkeys([*clues, *map(Clue, ties)])), depth


def _sharpened(graph: Graph, rng: Random, draft: Draft) -> Draft:
    """With attributes of what is hidden, until one answer is left or there are no more.

    Those of the answer would find its page.
    """
    hidden = [entity for entity in draft.hidden if entity not in (draft.answer, ASKED)]
    further = [clue for entity in hidden for clue in described(graph, entity, rng)]
    for clue in rng.sample(further, len(further)):
        if is_unique(graph, draft):
            break
        draft = draft.plus(clue)
    return in_order(draft)
