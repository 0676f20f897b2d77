"""A knowledge graph: entities that have pages, and facts that pages state.

A file of JSON lines has one entity, one fact, or one wording in a line, in any order:

    {"entity": "Q1", "names": ["Ada Byron", "Ada"], "kind": "person", "url": "https://...",
     "attributes": {"birth year": "1815"}, "split": "train"}
    {"subject": "Q1", "relation": "birthplace", "object": "Q2", "url": "https://..."}
    {"wording": "educated at", "statement": "{s} studied at {o}.", "noun": false}
    {"kind": "river", "article": "the", "pronoun": "that"}

The first name is the canonical one.  Attributes are facts whose object is a text, stated on the entity's page.
`url` of a fact is the page that states it, without one that of the subject.  Questions never lead from one
`split` into another.  Without a wording a fact reads "The birthplace of {s} is {o}."; `noun` says whether "the
birthplace of something" is English.  Without a row for its kind an entity has no article; persons are "who".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from carr_jax.data.files import parse_all, text, texts
from carr_jax.records import InputError
from carr_jax.rewards.matching import fold, parse_date, parse_number

_PERSONS = ("person", "human")


@dataclass(frozen=True)
class Entity:
    """A thing that has a page; `names` are all accepted ones, the canonical one first."""

    id: str
    names: tuple[str, ...]
    kind: str
    url: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    split: str = ""

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Fact:
    """What the page `url` states: `object` is the id of an entity, or with `is_value` a text."""

    subject: str
    relation: str
    object: str
    url: str
    is_value: bool = False

    def other(self, entity: str) -> str:
        """The end of a fact that is not this one."""
        return self.object if entity == self.subject else self.subject


@dataclass(frozen=True)
class Kind:
    """How things of one kind are told: the article of their names, and the pronoun of a clause about them."""

    article: str = ""
    pronoun: str = "that"


@dataclass(frozen=True)
class Wording:
    """How a relation is told: a sentence with {s} and {o}; `noun` if "the (relation) of it" is English."""

    statement: str
    noun: bool = True


class Graph:
    """Entities and facts, with the indexes that walks and matching need.

    Raises ValueError for a fact about an unknown entity, and for a name that is a relation and an attribute.
    """

    def __init__(
        self,
        entities: Iterable[Entity],
        facts: Iterable[Fact],
        wordings: Mapping[str, Wording] | None = None,
        kinds: Mapping[str, Kind] | None = None,
    ) -> None:
        self.entities = {entity.id: entity for entity in entities}
        self._wordings, self._kinds = wordings or {}, kinds or {}
        told = dict.fromkeys(facts)
        for fact in told:
            _check_ends(fact, self.entities)
        told |= dict.fromkeys(
            Fact(e.id, name, value, e.url, True)
            for e in self.entities.values()
            for name, value in e.attributes.items()
        )
        self.facts = tuple(told)
        self._index(self.facts)

    def _index(self, facts: Sequence[Fact]) -> None:
        links: dict[str, list[Fact]] = defaultdict(list)
        values: dict[str, list[Fact]] = defaultdict(list)
        about: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        to: dict[tuple[str, str], list[Fact]] = defaultdict(list)
        named: dict[str, list[Fact]] = defaultdict(list)
        for fact in facts:
            named[fact.relation].append(fact)
            about[fact.subject, fact.relation].append(fact)
            for told in (fact.object, *vaguer(fact.object)) if fact.is_value else (fact.object,):
                to[fact.relation, told].append(fact)
            for end in (fact.subject,) if fact.is_value else dict.fromkeys((fact.subject, fact.object)):
                (values if fact.is_value else links)[end].append(fact)
        self._links, self._values, self._about, self._to, self._named = links, values, about, to, named
        if mixed := [name for name, told in named.items() if len({fact.is_value for fact in told}) > 1]:
            raise ValueError(f"{mixed[0]!r} is a relation and an attribute; give one of them another name")

    def links(self, entity: str) -> Sequence[Fact]:
        """The facts that tie an entity to others, whichever end it is."""
        return self._links.get(entity, ())

    def values(self, entity: str) -> Sequence[Fact]:
        """The attributes of an entity."""
        return self._values.get(entity, ())

    def about(self, subject: str, relation: str) -> Sequence[Fact]:
        """The facts of a relation that have this subject."""
        return self._about.get((subject, relation), ())

    def to(self, relation: str, object: str) -> Sequence[Fact]:
        """The facts of a relation with this object: an entity, a value, or a vaguer one such as "the 1710s"."""
        return self._to.get((relation, object), ())

    def of_relation(self, relation: str) -> Sequence[Fact]:
        """All facts of a relation."""
        return self._named.get(relation, ())

    def statement(self, relation: str) -> str:
        """The sentence of a relation, with {s} and {o}."""
        wording = self._wordings.get(relation)
        return wording.statement if wording else f"The {relation} of {{s}} is {{o}}."

    def is_noun(self, relation: str) -> bool:
        """Whether "the (relation) of something" is English."""
        wording = self._wordings.get(relation)
        return wording is None or wording.noun

    def kind(self, entity: str) -> Kind:
        """How an entity is told."""
        name = self.entities[entity].kind
        return self._kinds.get(name) or Kind(pronoun="who" if name in _PERSONS else "that")

    def names_one(self, entity: str) -> bool:
        """Whether the canonical name of an entity is a name of nothing else."""
        return self._bearers[fold(self.entities[entity].name)] == 1

    @cached_property
    def _bearers(self) -> Counter[str]:
        return Counter(name for e in self.entities.values() for name in {fold(name) for name in e.names})


def vaguer(value: str) -> tuple[str, ...]:
    """What a date lies in, from near to far: its decade, its century; () for anything else.

    Years before 1000 have only their century.
    """
    date = parse_date(value)
    if date is None or date[0] < 1:
        return ()
    year = date[0]
    century = f"the {_ordinal((year - 1) // 100 + 1)} century"
    return (f"the {year // 10 * 10}s", century) if year >= 1000 else (century,)


def value_type(value: str) -> str:
    """The answer type of a value: date, number, or "" for one that no question asks for."""
    if parse_date(value):
        return "date"
    return "number" if parse_number(value) else ""


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _check_ends(fact: Fact, entities: Mapping[str, Entity]) -> None:
    for end in (fact.subject, fact.object):
        if end not in entities:
            raise ValueError(f"a fact ({fact.relation!r}) is about {end!r}, which is no entity")


# ------------------------------------------------------------------------------------------------------- files

_Row = Entity | dict[str, Any]


def read_graph(path: str | Path) -> Graph:
    """The graph of a .jsonl(.gz) file.

    Raises InputError with file, line and reason of the bad rows (the first ten, and how many there are).
    """
    places: dict[str, str] = {}

    def parse(row: Mapping[str, Any], place: str) -> _Row:
        if "entity" not in row:
            return _other_row(row) | {"place": place}
        entity = _entity(row)
        if entity.id in places:
            raise ValueError(f"the entity {entity.id!r} stands on {places[entity.id]} too")
        places[entity.id] = place
        return entity

    rows = parse_all([Path(path)], parse)
    others = [row for row in rows if isinstance(row, dict)]
    try:
        return _graph({e.id: e for e in rows if isinstance(e, Entity)}, others)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _graph(entities: Mapping[str, Entity], rows: Sequence[Mapping[str, Any]]) -> Graph:
    """Raises ValueError for facts about entities that are not there."""
    facts = [row for row in rows if "subject" in row]
    lost = [(r["place"], end) for r in facts for end in (r["subject"], r["object"]) if end not in entities]
    if lost:
        raise ValueError(f"{len(lost)} ends of facts are no entity, such as {lost[0][1]!r} ({lost[0][0]})")
    return Graph(
        entities.values(),
        (
            Fact(r["subject"], r["relation"], r["object"], r.get("url") or entities[r["subject"]].url)
            for r in facts
        ),
        {row["wording"]: Wording(row["statement"], row.get("noun", True)) for row in rows if "wording" in row},
        {
            row["kind"]: Kind(row.get("article", ""), row.get("pronoun", "that"))
            for row in rows
            if "kind" in row
        },
    )


def _entity(row: Mapping[str, Any]) -> Entity:
    id, kind, url = (text(row, key) for key in ("entity", "kind", "url"))
    names, attributes = texts("names", row["names"]), row.get("attributes", {})
    if not names or not all(name.strip() for name in names):
        raise ValueError("'names' must hold at least one name, and none that is empty")
    if not isinstance(attributes, dict):
        raise TypeError(f"'attributes' must be an object of texts, got {attributes!r}")
    attributes = {name: text(attributes, name) for name in attributes}
    split = text(row, "split") if "split" in row else ""
    return Entity(id, tuple(dict.fromkeys(names)), kind, url, attributes, split)


def _other_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A fact or a wording, checked."""
    kinds_of_rows = {"subject": ("relation", "object"), "wording": ("statement",), "kind": ("pronoun",)}
    first = next((key for key in kinds_of_rows if key in row), None)
    if first is None:
        raise ValueError("a row needs one of the keys entity, subject, wording, kind")
    for key in (first, *kinds_of_rows[first], *({"url", "article"} & row.keys())):
        text(row, key)
    if first == "wording" and sorted(re.findall(r"\{.*?\}", row["statement"])) != ["{o}", "{s}"]:
        raise ValueError(f"a statement needs {{s}} and {{o}} once each, got {row['statement']!r}")
    if not isinstance(row.get("noun", True), bool):
        raise TypeError(f"'noun' must be true or false, got {row['noun']!r}")
    return dict(row)
