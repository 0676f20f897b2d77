"""Questions from graphs: what each strategy drafts, that the answer is the only one, and how it reads."""

import itertools
import random
import re

import networkx
import pytest

from carr_jax.data.drafts import ASKED, Clue, Draft, in_order, is_unique
from carr_jax.data.graph import Entity, Fact, Graph, Kind, Wording
from carr_jax.data.obscuring import obscured
from carr_jax.data.synthesis import STRATEGIES, Shape, attributes, inject, subgraph, walk
from carr_jax.data.wording import faults, question_of, text_of
from carr_jax.rewards.lint import connected_to_answer, lint
from carr_jax.search.world import WorldConfig, build_world
from carr_jax.world_graph import graph_of_world


def thing(id, kind, **values):
    return Entity(id, (id,), kind, f"u/{id}", {name.replace("_", " "): text for name, text in values.items()})


def fact(subject, relation, object, is_value=False):
    return Fact(subject, relation, object, f"u/{subject}", is_value)


SMALL = Graph(
    [
        thing("Emma", "novel", topic="chess"),
        thing("Dune", "novel", topic="chess"),
        thing("Ada", "person", birth_year="1812"),
        thing("Bob", "person", birth_year="1815"),
        thing("Kalkar", "town", founding_year="1230"),
        thing("Oder", "river"),
    ],
    [
        fact("Emma", "author", "Ada"),
        fact("Dune", "author", "Bob"),
        fact("Ada", "birthplace", "Kalkar"),
        fact("Bob", "birthplace", "Kalkar"),
        fact("Kalkar", "stream", "Oder"),
    ],
    {
        "topic": Wording("{s} is about {o}."),
        "birth year": Wording("{s} was born in {o}."),
        "founding year": Wording("{s} was founded in {o}."),
    },
    {"river": Kind("the")},
)
CHAIN = (fact("Emma", "author", "Ada"), fact("Ada", "birthplace", "Kalkar"), fact("Kalkar", "stream", "Oder"))


def draft(*clues, answer, named=()):
    told = tuple(clue if isinstance(clue, Clue) else Clue(clue) for clue in clues)
    return Draft("walk", answer, told, frozenset(named))


def value(subject, name, text, told=None):
    return Clue(fact(subject, name, text, True), text if told is None else told)


# -------------------------------------------------------------------------------------------------- uniqueness


@pytest.mark.parametrize(
    ("clues", "answer", "named", "unique"),
    [
        (CHAIN, "Oder", ["Emma"], True),
        (CHAIN[:2], "Kalkar", ["Emma"], True),
        (CHAIN[1:2], "Ada", ["Kalkar"], False),  # Bob was born there, too
        ((*CHAIN[1:2], value("Ada", "birth year", "1812")), "Ada", ["Kalkar"], True),
        ((*CHAIN[1:2], value("Ada", "birth year", "1812", "the 1810s")), "Ada", ["Kalkar"], False),
        (CHAIN, "Oder", [], False),  # one answer, but two ways to it
        ((value("Emma", "topic", "chess"), *CHAIN[:1]), "Ada", [], False),
        ((value("Emma", "topic", "chess"), *CHAIN[:1], value("Ada", "birth year", "1812")), "Ada", [], True),
        ((CHAIN[0], value("Ada", "birth year", "1812", "")), ASKED, ["Emma"], True),
        ((CHAIN[1], value("Ada", "birth year", "1812", "")), ASKED, ["Kalkar"], False),
    ],
)
def test_one_way_to_fill_in_what_is_hidden(clues, answer, named, unique):
    assert is_unique(SMALL, draft(*clues, answer=answer, named=named)) is unique


def test_uniqueness_against_trying_everything():
    """Every pattern of three facts over the small graph, against all assignments of all hidden entities."""
    for facts in itertools.combinations([f for f in SMALL.facts if not f.is_value], 3):
        ends = sorted({end for f in facts for end in (f.subject, f.object)})
        for named in itertools.combinations(ends, 1):
            hidden = [end for end in ends if end not in named]
            roots = set(hidden) - {f.object for f in facts}
            solutions = 0
            for choice in itertools.product(SMALL.entities, repeat=len(hidden)):
                now = dict(zip(hidden, choice, strict=True)) | {n: n for n in named}
                holds = all(fact(now[f.subject], f.relation, now[f.object]) in SMALL.facts for f in facts)
                kinds = all(SMALL.entities[now[e]].kind == SMALL.entities[e].kind for e in roots)
                solutions += holds and kinds
            assert is_unique(SMALL, draft(*facts, answer=hidden[0], named=named)) is (solutions == 1)


def test_a_name_that_two_bear_names_nobody():
    twins = Graph([*SMALL.entities.values(), Entity("Emma 2", ("Emma",), "ship", "u/2")], SMALL.facts[:5])
    assert not is_unique(twins, draft(*CHAIN, answer="Oder", named=["Emma"]))


def test_what_takes_too_long_counts_as_not_unique():
    people = [thing(f"P{i}", "person") for i in range(120)]
    knows = [fact(a.id, "friend", b.id) for a, b in itertools.permutations(people, 2)]
    pattern = draft(*(fact(f"P{i}", "friend", f"P{i + 1}") for i in range(4)), answer="P0")
    assert not is_unique(Graph(people, knows), pattern)


# ------------------------------------------------------------------------------------------------------- words


def asked(question_draft):
    return question_of(SMALL, in_order(question_draft), "small")


def test_a_chain_is_one_phrase():
    question = asked(draft(*CHAIN, answer="Oder", named=["Emma"]))
    assert "the stream of the birthplace of the author of Emma?" in question.question
    assert (question.answer, question.answer_type, question.hops) == ("Oder", "entity", 3)
    assert [r.text for r in question.rubrics] == [
        "The author of Emma is <E1>.",
        "The birthplace of <E1> is <E2>.",
        "The stream of <E2> is the <E0>.",
    ]
    assert [r.support_urls for r in question.rubrics] == [("u/Emma",), ("u/Ada",), ("u/Kalkar",)]
    assert question.entities == {"E0": ("Oder",), "E1": ("Ada",), "E2": ("Kalkar",)}
    assert question.gold_urls == ("u/Emma", "u/Ada", "u/Kalkar")
    assert question.metadata["walk"][1] == {
        "subject": "<E1>",
        "relation": "birthplace",
        "object": "<E2>",
        "url": "u/Ada",
        "query": "<E1> birthplace",
    }
    assert faults(question) == lint(question) == []


def test_rubrics_are_exact_where_the_question_is_vague():
    question = asked(draft(*CHAIN[:2], value("Ada", "birth year", "1812", "the 1810s"), answer="Ada"))
    assert question.question == (
        "The author of a novel was born in the 1810s. The birthplace of the author is a town. What is the name "
        "of the author?"
    )
    assert "<E0> was born in 1812." in [r.text for r in question.rubrics]


def test_a_date_may_be_the_answer():
    question = asked(draft(CHAIN[0], value("Ada", "birth year", "1812", ""), answer=ASKED, named=["Emma"]))
    assert (question.answer, question.answer_type) == ("1812", "date")
    assert "the birth year of the author of Emma?" in question.question
    assert [r.text for r in question.rubrics][-1] == "<E1> was born in <E0>."


def test_branches_are_sentences():
    tree = draft(
        value("Emma", "topic", "chess"),
        *CHAIN[:2],
        value("Ada", "birth year", "1812", "the 1810s"),
        CHAIN[2],
        answer="Kalkar",
        named=["Oder"],
    )
    assert text_of(SMALL, in_order(tree)) == (
        "A novel is about chess. The author of the novel was born in the 1810s. The birthplace of the author "
        "is a town. The stream of the town is the Oder. What is the name of the town?"
    )


def test_relations_that_are_no_nouns_get_their_own_sentences():
    graph = Graph(
        [thing("Ada", "person"), thing("Kalkar College", "school"), thing("Oder", "river")],
        [fact("Ada", "educated at", "Kalkar College"), fact("Kalkar College", "site", "Oder")],
        {"educated at": Wording("{s} studied at {o}.", noun=False)},
    )
    chain = draft(*graph.facts, answer="Oder", named=["Ada"])
    assert text_of(graph, chain) == "Ada studied at a school. What is the site of the school?"
    back = draft(graph.facts[0], answer="Kalkar College", named=["Ada"])
    assert text_of(graph, back) == "Ada studied at a school. What is the name of the school?"


def test_dates_read_as_english_however_they_are_told():
    graph = Graph(
        [thing("Ada", "person", born="3 May 1812", inception="1812")],
        [],
        {"born": Wording("{s} was born on {o}.")},
    )
    born, inception = (Clue(f, "the 1810s") for f in graph.values("Ada"))
    text = text_of(graph, draft(born, inception, answer="Ada"))
    assert text == (
        "A person was born in the 1810s. The inception of the person lies in the 1810s. What is the name of "
        "the person?"
    )


def test_values_with_and_without_a_sentence_of_their_own_are_all_told():
    graph = Graph(
        [
            thing("Emma", "novel", topic="chess", length="400 pages"),
            thing("Ada", "person", born="1812", height="2 m"),
        ],
        [fact("Emma", "author", "Ada")],
        {"born": Wording("{s} was born in {o}."), "topic": Wording("{s} is about {o}.")},
    )
    values = [Clue(f, f.object) for e in ("Emma", "Ada") for f in graph.values(e)]
    clues = [*values[:2][::-1], Clue(graph.facts[0]), *values[2:]]
    assert text_of(graph, draft(*clues, answer="Ada")) == (
        "The length of a novel is 400 pages. The novel is about chess. The author of the novel was born in "
        "1812. The height of the author is 2 m. What is the name of the author?"
    )


def test_what_the_question_gives_away_is_a_fault():
    leak = draft(
        CHAIN[0],
        Clue(fact("Ada", "nickname", "the author of Kalkar", True), "Kalkar fan"),
        CHAIN[1],
        answer="Kalkar",
        named=["Emma"],
    )
    assert "the question names 'Kalkar'" in faults(question_of(SMALL, leak, "small"))[0]


def test_the_same_question_has_the_same_id_however_it_was_found():
    one = draft(*CHAIN, answer="Oder", named=["Emma"])
    other = draft(*reversed(CHAIN), answer="Oder", named=["Emma"])
    assert asked(one).id == asked(other).id
    assert asked(one).id != asked(draft(*CHAIN[:2], answer="Kalkar", named=["Emma"])).id


# -------------------------------------------------------------------------------------------------- strategies

KINDS = "person|town|river|novel|company|museum|ship|festival"


@pytest.fixture(scope="module")
def world():
    return graph_of_world(build_world(WorldConfig(seed=3)))


@pytest.fixture(scope="module")
def drafts(world):
    """[strategy, hops] -> drafts, as they are and obscured."""
    starts = sorted(e.id for e in world.entities.values() if e.split == "train")
    made = {}
    for (name, strategy), hops in itertools.product(STRATEGIES.items(), (2, 3, 4)):
        for number in range(14):
            rng = random.Random(f"{name}/{hops}/{number}")
            found = strategy(world, rng, rng.choice(starts), Shape(hops))
            if found is not None and is_unique(world, found):
                made.setdefault((name, hops), []).append((found, obscured(world, found, rng)))
    return made


def everything(drafts):
    return [d for pairs in drafts.values() for pair in pairs for d in pair]


def test_every_strategy_finds_unique_clean_connected_questions(world, drafts):
    assert min(len(pairs) for pairs in drafts.values()) >= 7 and len(drafts) == 12
    for found in everything(drafts):
        question = question_of(world, found, "world")
        assert is_unique(world, found) and faults(question) == [] and all(connected_to_answer(question.rubrics))
        assert len({world.entities[e].split for e in found.hidden if e != ASKED}) == 1
        told = {clue.fact for clue in found.clues}
        assert told <= set(world.facts) and len(told) == len(found.clues) == len(question.rubrics)


def test_the_words_of_a_question_tell_every_clue(world, drafts):
    """Names and values stand in it as they are told, each relation as often as it is a clue."""
    for found in everything(drafts):
        text = question_of(world, found, "world").question
        assert all(world.entities[entity].name in text for entity in found.named)
        assert all(clue.told in text for clue in found.clues)
        relations = [clue.fact.relation for clue in found.clues if not clue.told]
        assert all(text.count(relation) >= relations.count(relation) for relation in relations)
        things = rf"\bthe ((?:(?:first|second|third) )?(?:{KINDS}))\b(?! of| that| who)"
        for thing in re.finditer(things, text):
            assert re.search(rf"\b[Aa]n? {thing[1]}\b", text[: thing.start()]), text
        assert text.endswith("?") and not re.search(r"\b(?:a|an|the) (?:a|an|the) |  |[{}<>]", text)


def test_walks_have_their_length_and_never_two_steps_on_one_page(drafts):
    for (name, hops), pairs in drafts.items():
        for plain, _ in pairs:
            ties = [clue for clue in plain.clues if len(clue.ends) == 2]
            assert len(ties) == hops or name == "subgraph"
            if name == "walk":
                urls = [clue.fact.url for clue in plain.clues]
                assert all(a != b for a, b in itertools.pairwise(urls))
                assert len(set(plain.hidden) | plain.named) == hops + 1


def test_a_walk_ends_elsewhere_rather_than_in_a_dead_end():
    """From Emma three facts lead on; the only walk of three is found whatever is tried first."""
    ends = [thing(f"End {i}", "town") for i in range(8)]
    entities = [*(thing(e.id, e.kind) for e in SMALL.entities.values()), *ends]
    away = [fact("Emma", f"place {i}", e.id) for i, e in enumerate(ends)]
    graph = Graph(entities, [*(f for f in SMALL.facts if not f.is_value), *away])
    for seed in range(20):
        found = walk(graph, random.Random(seed), "Emma", Shape(3))
        assert [c.fact for c in found.clues] == list(CHAIN)
    assert walk(graph, random.Random(0), "Emma", Shape(6)) is None


def test_hubs_are_left_out():
    hub = [fact(f"P{i}", "country", "Kalkar") for i in range(9)]
    graph = Graph([thing("Kalkar", "country"), *(thing(f"P{i}", "person") for i in range(9))], hub)
    assert walk(graph, random.Random(0), "P0", Shape(1, most_links=9)).answer == "Kalkar"
    assert walk(graph, random.Random(0), "P0", Shape(1, most_links=8)) is None


def test_attributes_names_nobody_and_subgraphs_have_branches(world, drafts):
    for (name, _), pairs in drafts.items():
        for plain, _ in pairs:
            degrees = dict(networkx_degrees(plain))
            if name == "attributes":
                assert not plain.named and any(clue.told for clue in plain.clues)
            if name == "subgraph":
                assert degrees[plain.answer] >= 2
                assert not any({plain.answer} & set(c.ends) and set(c.ends) & plain.named for c in plain.clues)
            if name == "inject":
                assert len(plain.named) <= 1


def networkx_degrees(found):
    graph = networkx.Graph(clue.ends for clue in found.clues if len(clue.ends) == 2)
    return graph.degree()


def test_strategies_are_pure_functions(world):
    starts = sorted(e.id for e in world.entities.values() if e.split == "train")[:10]
    for strategy in (walk, attributes, inject, subgraph):
        for start in starts:
            again = [strategy(world, random.Random(7), start, Shape(3)) for _ in range(2)]
            assert again[0] == again[1]


def test_obscuring_takes_names_and_days_away_where_it_can(drafts):
    pairs = [pair for some in drafts.values() for pair in some]
    before, after = (sum(len(pair[i].named) for pair in pairs) for i in (0, 1))
    assert after < 0.1 * before
    vague = [
        c.told != c.fact.object for _, d in pairs for c in d.clues if c.told and c.told[-1].isdigit() is False
    ]
    assert sum(vague) > 60
    for plain, found in pairs:
        assert {c.fact for c in plain.clues} <= {c.fact for c in found.clues} and found.answer == plain.answer
