"""The built-in world: a small invented encyclopedia and multi-hop questions about it, made from a seed.

Entities of eight kinds are tied by functional relations; each has one short page.  A question is a walk over
the relations from an anchor, which stands in the question by name or is only described by two attributes that
no other entity shares.  The entities are dealt to the splits before they are tied, and the objects of an entity
come from its own split, so that walks of different splits share no entity.  Distractor pages point anywhere and
lie on no walk.  Everything is drawn from `random.Random`, hence equal on every machine.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from carr_jax.records import Page, Question, Rubric
from carr_jax.search.lexicon import FILLERS, KINDS, QUESTIONS, RELATIONS, Kind, Relation, article

SPLITS = ("sft", "train", "held_out")
_ADDRESS = "https://world.example/wiki/"
_DOUBLED = ("person", "town", "novel", "company", "ship")  # the other names say their kind already
_YEARS = range(1700, 1900)
_RELATIONS_OF = {kind: tuple(r for r in RELATIONS if r.subject == kind) for kind in KINDS}


@dataclass(frozen=True)
class WorldConfig:
    """What the world contains.

    `entities_per_kind` entities of each of the 8 kinds lie on walks, dealt to the splits by `shares`;
    `distractors` further pages do not, and `look_alikes` more bear the name of an entity on a walk (both are
    then told apart by a word in parentheses).  `hops` are the lengths of walks, taken in turn; `obfuscate` is
    the probability that the anchor is only described, `shortcut` that a question whose answer is an entity also
    describes the answer well enough to find it without the walk.
    """

    seed: int = 0
    entities_per_kind: int = 150
    distractors: int = 600
    look_alikes: int = 200
    hops: tuple[int, ...] = (2, 3)
    obfuscate: float = 0.0
    shortcut: float = 0.0
    shares: tuple[float, float, float] = (0.7, 0.2, 0.1)

    def __post_init__(self) -> None:
        if self.entities_per_kind < 10:
            raise ValueError(f"entities_per_kind must be at least 10, got {self.entities_per_kind}")
        if not self.hops or not all(1 <= n <= 4 for n in self.hops):
            raise ValueError(f"hops must be lengths from 1 to 4, got {self.hops}")
        if min(self.shares) <= 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(f"shares must be three positive parts that sum to 1, got {self.shares}")
        for name in ("obfuscate", "shortcut"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability, got {getattr(self, name)}")


@dataclass(frozen=True)
class Entity:
    """One thing of the world.  `split` is None for a distractor, `facts` maps relation names to objects."""

    name: str
    kind: str
    split: str | None
    topic: str
    year: str
    url: str
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, str]:
        return {"topic": self.topic, "year": self.year}


@dataclass(frozen=True)
class World:
    """Entities by name, one page each, and the questions that can be asked about them."""

    config: WorldConfig
    entities: Mapping[str, Entity]
    pages: tuple[Page, ...]

    def walks(self, split: str, hops: int) -> Iterator[tuple[Entity, tuple[Relation, ...]]]:
        """All walks of `hops` relations inside `split` that visit nothing twice; a year only at the end."""
        for entity in self.entities.values():
            if entity.split == split:
                yield from ((entity, path) for path in self._paths(entity, hops, (entity.name,)))

    def questions(self, split: str, count: int, seed: int = 0) -> list[Question]:
        """`count` distinct questions, the lengths in `config.hops` taken in turn.

        A smaller `count` gives a prefix.  Raises ValueError for an unknown split or when fewer exist.
        """
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}; the world has {', '.join(SPLITS)}")
        pools = [self._shuffled(split, hops, seed) for hops in self.config.hops]
        questions = []
        for turn in range(count):
            question = next(pools[turn % len(pools)], None)
            if question is None:
                hops = self.config.hops[turn % len(pools)]
                raise ValueError(
                    f"the world has too few {hops}-hop questions in {split}: {count} were asked for, {turn} "
                    f"made; enlarge entities_per_kind or that split's share"
                )
            questions.append(question)
        return questions

    def _paths(self, entity: Entity, hops: int, visited: tuple[str, ...]) -> Iterator[tuple[Relation, ...]]:
        for relation in _RELATIONS_OF[entity.kind]:
            target = entity.facts[relation.name]
            if hops == 1:
                if target not in visited:
                    yield (relation,)
            elif relation.object is not None and target not in visited:
                further = self._paths(self.entities[target], hops - 1, (*visited, target))
                yield from ((relation, *rest) for rest in further)

    def _shuffled(self, split: str, hops: int, seed: int) -> Iterator[Question]:
        walks = list(self.walks(split, hops))
        random.Random(f"{self.config.seed} {seed} {split} {hops}").shuffle(walks)
        for anchor, path in walks:
            question = self._question(split, seed, anchor, path)
            if not any(name in question.question for names in question.gold_entities for name in names):
                yield question

    def _question(self, split: str, seed: int, anchor: Entity, path: Sequence[Relation]) -> Question:
        """The walk as a question.  E1, E2, ... count along it, a described anchor first; its end is E0."""
        key = f"{anchor.url.removeprefix(_ADDRESS)}.{'.'.join(r.name.replace(' ', '-') for r in path)}"
        rng = random.Random(f"{self.config.seed} {seed} {split} {key}")
        described = rng.random() < self.config.obfuscate
        clue = rng.choice(KINDS[anchor.kind].clues).format(**anchor.attributes)
        chain = [anchor, *self._along(anchor, path)]
        answer = chain[-1].facts[path[-1].name]
        start = "<E1>" if described else anchor.name
        places = [start, *(f"<E{i + described}>" for i in range(1, len(chain))), "<E0>"]
        rubrics = [*(_description(anchor, start) if described else ()), *_hops(chain, path, places)]
        hidden = {
            place[1:-1]: (e.name,) for place, e in zip(places, chain, strict=False) if place.startswith("<E")
        }
        text = rng.choice(QUESTIONS).format(x=_phrase(path, clue if described else named(anchor)))
        hint = self._hint(rng, answer)
        return Question(
            id=f"world{self.config.seed}-{split}-{key}{'-described' if described else ''}",
            question=f"{text} {hint}" if hint else text,
            answer=answer,
            answer_type="date" if path[-1].object is None else "entity",
            rubrics=tuple(rubrics),
            entities={"E0": (answer,), **hidden},
            gold_urls=tuple(e.url for e in chain),
            hops=len(path),
            source="world",
            split=split,
            metadata={"walk": _walk(chain, path, places, described), "shortcut": hint},
        )

    def _along(self, anchor: Entity, path: Sequence[Relation]) -> Iterator[Entity]:
        """The entities between the anchor and the end of the walk."""
        for relation in path[:-1]:
            anchor = self.entities[anchor.facts[relation.name]]
            yield anchor

    def _hint(self, rng: random.Random, answer: str) -> str:
        """With probability `shortcut`, a clue that alone determines an answer which is an entity."""
        entity = self.entities.get(answer)
        if entity is None or rng.random() >= self.config.shortcut:
            return ""
        return f"It is {rng.choice(KINDS[entity.kind].clues).format(**entity.attributes)}."


def build_world(config: WorldConfig) -> World:
    """Make the world of `config`.  Raises ValueError when it asks for more names than there are."""
    rng = random.Random(f"world {config.seed}")
    drafts = _draft(config, rng)
    by_kind = {kind: [e for e in drafts if e.kind == kind] for kind in KINDS}
    entities = {e.name: replace(e, facts=_facts(e, by_kind, rng)) for e in drafts}
    pages = [Page(e.url, e.name, _text(e, rng)) for e in entities.values()]
    rng.shuffle(pages)
    return World(config, entities, tuple(pages))


def named(entity: Entity) -> str:
    """The name in running text: with an article where the kind takes one."""
    return article(entity.kind) + entity.name


# ------------------------------------------------------------------------------------------------- entities


def _draft(config: WorldConfig, rng: random.Random) -> list[Entity]:
    """All entities, not yet tied: those on walks, then distractors and look-alikes."""
    names = {kind: _names(spec, rng) for kind, spec in KINDS.items()}
    traits = {kind: _traits(spec, rng) for kind, spec in KINDS.items()}
    splits = _deal(config)
    plan = [(kind, split) for split in splits for kind in KINDS]
    plan += [(kind, None) for kind in itertools.islice(itertools.cycle(KINDS), config.distractors)]
    try:
        drafts = [_entity(next(names[kind]), kind, split, *next(traits[kind]), rng) for kind, split in plan]
        originals = [i for i, entity in enumerate(drafts) if entity.split and entity.kind in _DOUBLED]
        for i in rng.sample(originals, config.look_alikes):
            drafts[i], double = _doubles(drafts[i], traits, rng)
            drafts.append(double)
    except (StopIteration, ValueError):
        raise ValueError(f"{config} asks for more entities than there are names; make it smaller") from None
    return drafts


def _deal(config: WorldConfig) -> list[str]:
    """The split of the i-th entity of every kind; two at least, for nobody mentors themselves."""
    smaller = [max(2, round(share * config.entities_per_kind)) for share in config.shares[1:]]
    counts = (config.entities_per_kind - sum(smaller), *smaller)
    return [split for split, count in zip(SPLITS, counts, strict=True) for _ in range(count)]


def _names(kind: Kind, rng: random.Random) -> Iterator[str]:
    names = [" ".join(parts) for parts in itertools.product(*kind.names)]
    rng.shuffle(names)
    return iter(names)


def _traits(kind: Kind, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Distinct (topic, year) pairs: two attributes always tell an entity from all others of its kind."""
    pairs = [(topic, str(year)) for topic in kind.topics for year in _YEARS]
    rng.shuffle(pairs)
    return iter(pairs)


def _entity(name: str, kind: str, split: str | None, topic: str, year: str, rng: random.Random) -> Entity:
    return Entity(name, kind, split, topic, year, _address(name, rng))


def _doubles(
    original: Entity, traits: Mapping[str, Iterator[tuple[str, str]]], rng: random.Random
) -> tuple[Entity, Entity]:
    """The entity and a distractor of the same name, told apart in parentheses.

    Two persons are the elder and the younger; otherwise the double is of another kind, and the kind tells.
    """
    kind = original.kind
    if kind != "person":
        kind = rng.choice([other for other in _DOUBLED if other not in (kind, "person")])
    topic, year = next(pair for pair in traits[kind] if pair[1] != original.year)
    words = (original.kind, kind)
    if kind == "person":
        words = ("elder", "younger") if original.year < year else ("younger", "elder")
    names = [f"{original.name} ({word})" for word in words]
    return (
        replace(original, name=names[0], url=_address(names[0], rng)),
        _entity(names[1], kind, None, topic, year, rng),
    )


def _address(name: str, rng: random.Random) -> str:
    """Parentheses stay; other special letters are escaped on one half of the pages and plain on the other."""
    path = name.replace(" ", "_").replace("&", "%26")
    return _ADDRESS + (quote(path, safe="()%") if rng.random() < 0.5 else path)


def _facts(entity: Entity, by_kind: Mapping[str, list[Entity]], rng: random.Random) -> dict[str, str]:
    """One object per relation: from the entity's own split, for a distractor from anywhere."""
    facts = {}
    for relation in _RELATIONS_OF[entity.kind]:
        if relation.object is None:
            facts[relation.name] = entity.year
            continue
        known = [e for e in by_kind[relation.object] if entity.split in (None, e.split) and e is not entity]
        facts[relation.name] = rng.choice(known).name
    return facts


def _text(entity: Entity, rng: random.Random) -> str:
    """An opening with both attributes, then one sentence per relation in any order."""
    told = [r for r in _RELATIONS_OF[entity.kind] if r.object is not None]
    rng.shuffle(told)
    sentences = [rng.choice(KINDS[entity.kind].openings).format(s=entity.name, **entity.attributes)]
    sentences += [rng.choice(r.sentences).format(s=entity.name, o=entity.facts[r.name]) for r in told]
    return " ".join([*sentences, rng.choice(FILLERS)])


# ------------------------------------------------------------------------------------------------ questions


def _phrase(path: Sequence[Relation], start: str) -> str:
    """The walk as one noun phrase, such as "the birthplace of the author of The Silent Tower"."""
    for relation in path:
        start = relation.phrase.format(s=start)
    return start


def _description(anchor: Entity, place: str) -> list[Rubric]:
    facts = KINDS[anchor.kind].facts
    return [Rubric(fact.format(s=place, **anchor.attributes), (anchor.url,)) for fact in facts]


def _hops(chain: Sequence[Entity], path: Sequence[Relation], places: Sequence[str]) -> list[Rubric]:
    ends = zip(chain, path, places, places[1:], strict=False)
    return [Rubric(relation.statement.format(s=s, o=o), (e.url,)) for e, relation, s, o in ends]


def _walk(
    chain: Sequence[Entity], path: Sequence[Relation], places: Sequence[str], described: bool
) -> list[dict[str, str]]:
    """The steps that solve the question, in the form that `data.sources` gives evidence in too."""
    ends = zip(chain, path, places, places[1:], strict=False)
    steps = [_step(s, r.name, o, e.url, f"{s} {r.query}") for e, r, s, o in ends]
    if described:
        steps.insert(
            0, _step("", "description", places[0], chain[0].url, " ".join(chain[0].attributes.values()))
        )
    return steps


def _step(subject: str, relation: str, object: str, url: str, query: str) -> dict[str, str]:
    return {"subject": subject, "relation": relation, "object": object, "url": url, "query": query}
