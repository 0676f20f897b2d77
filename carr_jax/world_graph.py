"""The built-in world as a knowledge graph."""

from __future__ import annotations

import re

from carr_jax.data.graph import Entity, Fact, Graph, Kind, Wording
from carr_jax.search.lexicon import KINDS, RELATIONS, article
from carr_jax.search.world import World

# Topics by kind: the name of the attribute, and how it is told of something whose kind is known.
_TOPICS = {
    "person": ("profession", "{s} was a {o}."),
    "town": ("product", "{s} is known for its {o}."),
    "river": ("catch", "{s} is rich in {o}."),
    "novel": ("subject", "{s} is about {o}."),
    "company": ("line of business", "{s} makes {o}."),
    "museum": ("collection", "{s} collects {o}."),
    "ship": ("cargo", "{s} carried {o}."),
    "festival": ("programme", "{s} is devoted to {o}."),
}
_SUBJECT = re.compile(r"^The (?:\w+ )?\{s\}")  # "The town {s} was founded ..."


def graph_of_world(world: World) -> Graph:
    """Entities by name, the facts of their pages, topic and year as attributes.  Distractors have a split of
    their own: no question is about them, but they count where a question must have one answer."""
    relations = {(relation.subject, relation.name): relation for relation in RELATIONS}
    entities = [
        Entity(
            e.name,
            (e.name,),
            e.kind,
            e.url,
            {_TOPICS[e.kind][0]: e.topic, KINDS[e.kind].year: e.year},
            e.split or "distractor",
        )
        for e in world.entities.values()
    ]
    facts = [
        Fact(e.name, name, object, e.url)
        for e in world.entities.values()
        for name, object in e.facts.items()
        if relations[e.kind, name].object is not None
    ]
    years = {kind.year: _SUBJECT.sub("{s}", kind.facts[1]).replace("{year}", "{o}") for kind in KINDS.values()}
    kinds = {kind: Kind(article(kind).strip(), "who" if kind == "person" else "that") for kind in KINDS}
    wordings = {name: Wording(statement) for name, statement in (*_TOPICS.values(), *years.items())}
    return Graph(entities, facts, wordings, kinds)
