import collections
import hashlib
import itertools
import json
import re
import subprocess
import sys

import pytest

from carr_jax.addresses import canonical_url
from carr_jax.search.corpus import Corpus
from carr_jax.search.lexicon import KINDS, QUESTIONS, RELATIONS
from carr_jax.search.world import SPLITS, WorldConfig, build_world
from carr_jax.stored import to_json

CONFIG = WorldConfig(seed=3, obfuscate=0.5, shortcut=0.4)


@pytest.fixture(scope="module")
def world():
    return build_world(CONFIG)


@pytest.fixture(scope="module")
def questions(world):
    return {split: world.questions(split, count) for split, count in zip(SPLITS, (1500, 600, 100), strict=True)}


@pytest.fixture(scope="module")
def pages(world):
    return {page.url: page for page in world.pages}


def fill(text, question):
    for entity, names in question.entities.items():
        text = text.replace(f"<{entity}>", names[0])
    return text


def all_of(questions):
    return [q for split in SPLITS for q in questions[split]]


def test_every_relation_has_three_phrasings_and_every_kind_enough_relations():
    for relation in RELATIONS:
        if relation.object is not None:
            assert len(set(relation.sentences)) >= 3
            assert all(s.count("{s}") == 1 and s.count("{o}") == 1 for s in relation.sentences)
    outgoing = collections.Counter(r.subject for r in RELATIONS if r.object)
    assert set(outgoing) == set(KINDS)
    assert set(outgoing.values()) <= {3, 4}
    assert len(QUESTIONS) >= 3
    assert all(len(set(kind.openings)) >= 3 for kind in KINDS.values())


def test_topics_are_no_name_words(world):
    """Otherwise a description finds pages by their titles."""
    terms = Corpus(world.pages[:1]).ranker.terms
    names = {term for kind in KINDS.values() for part in kind.names for word in part for term in terms(word)}
    assert len({w for k in KINDS.values() for part in k.names for words in part for w in words.split()}) <= 250
    for kind in KINDS.values():
        assert not names & {term for topic in kind.topics for term in terms(topic)}


def test_default_world_has_two_thousand_short_pages_with_unique_addresses(world):
    assert len(world.pages) == len(world.entities) == 2000
    assert len({canonical_url(page.url) for page in world.pages}) == 2000
    assert {page.title for page in world.pages} == set(world.entities)
    lengths = sorted(len(page.text.split()) for page in world.pages)
    assert lengths[0] >= 30
    assert lengths[-1] <= 75
    urls = " ".join(page.url for page in world.pages)
    assert re.search(r"_\((elder|town|ship)\)", urls)
    assert "%26" in urls
    assert "%C3%BA" in urls
    assert "ú" in urls


def test_the_same_world_in_another_process_with_another_hash_seed(world):
    code = (
        "import hashlib, json; from carr_jax.stored import to_json; from carr_jax.search.world import *;"
        "w = build_world(WorldConfig(seed=3, obfuscate=0.5, shortcut=0.4)); q = w.questions('train', 50);"
        "print(hashlib.sha256(json.dumps(to_json([w.pages, q])).encode()).hexdigest())"
    )
    environment = {"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", code]
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    here = json.dumps(to_json([world.pages, world.questions("train", 50)]))
    assert other == hashlib.sha256(here.encode()).hexdigest()


def test_seeds_change_the_world_and_the_questions(world):
    assert build_world(WorldConfig(seed=4)).pages != build_world(WorldConfig(seed=5)).pages
    first, second = world.questions("train", 30), world.questions("train", 30, seed=1)
    assert first != second
    assert world.questions("train", 60)[:30] == first


def test_questions_are_distinct_and_take_the_lengths_in_turn(questions):
    every = all_of(questions)
    assert len({q.id for q in every}) == len(every)
    assert len({(q.gold_urls, q.answer, q.metadata["walk"][-1]["relation"]) for q in every}) > 0.95 * len(every)
    assert {len(q.question) for q in every} and max(len(q.question.split()) for q in every) < 50
    for split in SPLITS:
        assert [q.hops for q in questions[split]][:4] == [2, 3, 2, 3]
        assert {q.split for q in questions[split]} == {split}
    kinds = collections.Counter(q.answer_type for q in every)
    assert kinds["entity"] > kinds["date"] > 0.1 * len(every)


def test_splits_share_no_entity(world, questions):
    places = {}
    for split in SPLITS:
        places[split] = {url for q in questions[split] for url in q.gold_urls}
        places[split] |= {world.entities[q.answer].url for q in questions[split] if q.answer in world.entities}
    for one, two in itertools.combinations(SPLITS, 2):
        assert not places[one] & places[two]
    assert all(e.split in (None, *SPLITS) for e in world.entities.values())


def test_every_hop_stands_on_its_gold_page(questions, pages):
    for question in all_of(questions):
        assert question.entities["E0"] == (question.answer,)
        for step in question.metadata["walk"]:
            page = pages[step["url"]]
            assert fill(step["object"], question) in f"{page.title} {page.text}"
            assert fill(step["subject"], question) in page.title
        for rubric in question.rubrics:
            assert set(rubric.support_urls) <= set(question.gold_urls)


def test_following_the_facts_of_the_world_gives_the_answer(world, questions):
    """An independent walk: from the first page, by relation name only."""
    for question in all_of(questions):
        steps = question.metadata["walk"]
        described = steps[0]["relation"] == "description"
        here = next(e for e in world.entities.values() if e.url == steps[0]["url"]).name
        for step in steps[described:]:
            here = world.entities[here].facts[step["relation"]]
        assert here == question.answer


def test_hidden_entities_are_not_in_the_question(questions):
    for question in all_of(questions):
        assert not [n for names in question.gold_entities for n in names if n in question.question]
        first = question.metadata["walk"][0]
        if first["relation"] != "description":
            assert first["subject"] in question.question


def test_rubrics_have_placeholders_and_are_connected(questions):
    for question in all_of(questions):
        ids = {entity for rubric in question.rubrics for entity in rubric.entities}
        assert ids == set(question.entities) == {f"E{k}" for k in range(len(ids))}
        assert all(rubric.entities for rubric in question.rubrics)
        reached, size = {"E0"}, 0
        while size < len(reached):
            size = len(reached)
            reached |= {e for r in question.rubrics if reached & set(r.entities) for e in r.entities}
        assert reached == ids
        described = question.metadata["walk"][0]["relation"] == "description"
        assert len(question.rubrics) == question.hops + 2 * described


def test_descriptions_are_unique(world):
    pairs = collections.Counter((e.kind, e.topic, e.year) for e in world.entities.values())
    assert set(pairs.values()) == {1}


def test_obfuscate_and_shortcut_are_probabilities(questions):
    every = all_of(questions)
    described = [q.metadata["walk"][0]["relation"] == "description" for q in every]
    assert sum(described) / len(every) == pytest.approx(0.5, abs=0.05)
    entities = [q for q in every if q.answer_type == "entity"]
    hinted = [q for q in entities if q.metadata["shortcut"]]
    assert len(hinted) / len(entities) == pytest.approx(0.4, abs=0.05)
    assert not [q for q in every if q.answer_type == "date" and q.metadata["shortcut"]]


def test_a_shortcut_alone_determines_the_answer(world, questions):
    for question in all_of(questions):
        hint = question.metadata["shortcut"]
        assert question.question.endswith(hint)
        if hint:
            entity = world.entities[question.answer]
            same = [
                e.name
                for e in world.entities.values()
                if e.kind == entity.kind and e.topic in hint and e.year in hint
            ]
            assert same == [question.answer]


def test_no_knob_no_effect():
    plain = build_world(WorldConfig(seed=3)).questions("sft", 300)
    assert all(q.metadata["walk"][0]["relation"] != "description" for q in plain)
    assert not any(q.metadata["shortcut"] for q in plain)


def test_a_name_with_a_double_is_always_told_apart(world):
    doubles = [name for name in world.entities if name.endswith(")")]
    assert len(doubles) == 2 * CONFIG.look_alikes
    bases = collections.Counter(name.partition(" (")[0] for name in doubles)
    assert set(bases.values()) == {2}
    assert not set(bases) & set(world.entities)
    bare = re.compile(rf"\b(?:{'|'.join(map(re.escape, bases))})\b(?! \()")
    assert not [page.text for page in world.pages if bare.search(page.text)]


def test_no_name_is_part_of_another(world):
    """Or a judge that looks for names in text would take one entity for another."""
    names = "\n".join(world.entities)
    for name in world.entities:
        end = "" if name.endswith(")") else r"\b"
        assert len(re.findall(rf"\b{re.escape(name)}{end}", names)) == 1


def test_the_hop_query_finds_its_page(questions, world):
    corpus = Corpus(world.pages)
    found = collections.Counter()
    for question in questions["train"][:250]:
        for step in question.metadata["walk"]:
            hits = corpus.rank(fill(step["query"], question), 5)
            found[step["url"] in [hit.page.url for hit in hits]] += 1
    assert found[True] / found.total() > 0.98


def test_four_hops_and_a_small_world():
    small = build_world(WorldConfig(entities_per_kind=12, distractors=0, look_alikes=0, hops=(4,)))
    assert len(small.pages) == 96
    assert all(q.hops == 4 and len(q.rubrics) == 4 for q in small.questions("sft", 200))


def test_too_much_is_refused_with_a_reason(world):
    with pytest.raises(ValueError, match="too few 2-hop questions in held_out: 9999"):
        world.questions("held_out", 9999)
    with pytest.raises(ValueError, match="unknown split 'test'"):
        world.questions("test", 1)
    with pytest.raises(ValueError, match="more entities than there are names"):
        build_world(WorldConfig(entities_per_kind=400))
    for bad in ({"entities_per_kind": 2}, {"hops": (5,)}, {"shares": (1.0, 0.0, 0.0)}, {"obfuscate": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            WorldConfig(**bad)
