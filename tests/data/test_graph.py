"""Graphs from files: what is read, what is refused, and what a dump of Wikidata becomes."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carr_jax.data import wikidata
from carr_jax.data.graph import Entity, Fact, Graph, read_graph, vaguer, value_type
from carr_jax.data.wikidata import is_wikidata, read_wikidata
from carr_jax.records import InputError

ADA = {"entity": "Q1", "names": ["Ada Byron", "Ada"], "kind": "person", "url": "u/ada"}
TOWN = {
    "entity": "Q2",
    "names": ["Kalkar"],
    "kind": "town",
    "url": "u/k",
    "attributes": {"founded": "1230"},
}
BORN = {"subject": "Q1", "relation": "birthplace", "object": "Q2"}


def written(folder, *rows):
    path = folder / "graph.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_file_in_any_order(tmp_path):
    wording = {"wording": "founded", "statement": "{s} was founded in {o}.", "noun": False}
    graph = read_graph(written(tmp_path, BORN, wording, {"kind": "town", "pronoun": "which"}, ADA, TOWN))
    assert graph.entities["Q1"] == Entity("Q1", ("Ada Byron", "Ada"), "person", "u/ada")
    born, founded = graph.facts
    assert born == Fact("Q1", "birthplace", "Q2", "u/ada")  # the subject's page, where none is given
    assert founded == Fact("Q2", "founded", "1230", "u/k", is_value=True)
    assert list(graph.links("Q2")) == [born] and list(graph.values("Q2")) == [founded]
    assert list(graph.to("founded", "the 13th century")) == list(graph.to("founded", "the 1230s")) == [founded]
    assert graph.statement("birthplace") == "The birthplace of {s} is {o}." and graph.is_noun("birthplace")
    assert graph.statement("founded") == "{s} was founded in {o}." and not graph.is_noun("founded")
    assert (graph.kind("Q1").pronoun, graph.kind("Q2").pronoun) == ("who", "which")


def test_bad_rows_are_told_together_with_their_place(tmp_path):
    bad = [
        ADA,
        "{",
        {**ADA, "kind": "poet"},
        {**TOWN, "names": []},
        {**TOWN, "attributes": {"founded": 1230}},
        {"subject": "Q1", "relation": "birthplace"},
        {"wording": "x", "statement": "{s} is {s}."},
        {"something": "else"},
    ]
    with pytest.raises(InputError) as error:
        read_graph(written(tmp_path, *bad))
    said = str(error.value).splitlines()
    assert said[0].startswith("7 bad rows")
    for line, (number, reason) in zip(
        said[1:],
        enumerate(
            [
                "Expecting",
                "'Q1' stands on",
                "at least one name",
                "'founded' must be a text",
                "'object'",
                "{s} and {o}",
                "entity, subject, wording, kind",
            ],
            2,
        ),
        strict=True,
    ):
        assert f"graph.jsonl:{number}:" in line and reason in line


def test_facts_about_nothing_and_mixed_names_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"1 ends of facts are no entity, such as 'Q9' \(.*:2\)"):
        read_graph(written(tmp_path, ADA, {**BORN, "object": "Q9"}))
    with pytest.raises(InputError, match="'founded' is a relation and an attribute"):
        read_graph(written(tmp_path, ADA, TOWN, {**BORN, "relation": "founded"}))
    with pytest.raises(ValueError, match="which is no entity"):
        Graph([], [Fact("a", "r", "b", "u")])


def test_a_name_of_two_names_neither():
    def thing(id, *names):
        return Entity(id, names, "thing", f"u/{id}")

    graph = Graph([thing("1", "Kalkar"), thing("2", "Cleves", "KALKAR"), thing("3", "Emma")], [])
    assert [graph.names_one(id) for id in "123"] == [False, True, True]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1712", ("the 1710s", "the 18th century")),
        ("3 May 1900", ("the 1900s", "the 19th century")),
        ("2001", ("the 2000s", "the 21st century")),
        ("1111", ("the 1110s", "the 12th century")),
        ("846", ("the 9th century",)),
        ("painter", ()),
        ("12,000 inhabitants", ()),
    ],
)
def test_dates_become_decades_and_centuries(value, expected):
    assert vaguer(value) == expected


@given(st.integers(1000, 2100))
def test_a_year_lies_in_what_is_vaguer(year):
    decade, century = vaguer(str(year))
    assert int(decade[4:8]) <= year < int(decade[4:8]) + 10
    number = int("".join(c for c in century if c.isdigit()))
    assert 100 * (number - 1) < year <= 100 * number


def test_what_may_be_asked_for():
    assert [value_type(v) for v in ("1712", "12 May 1712", "12,000", "painter")] == [
        "date",
        "date",
        "number",
        "",
    ]


# ---------------------------------------------------------------------------------------------------- Wikidata


def claim(kind, value, rank="normal"):
    return {"rank": rank, "mainsnak": {"datavalue": {"type": kind, "value": value}}}


def item(id, label, claims, page=True):
    row = {"id": id, "type": "item", "labels": {"en": {"value": label}}, "claims": claims}
    row["aliases"] = {"en": [{"value": f"{label} again"}]}
    return row | ({"sitelinks": {"enwiki": {"title": label}}} if page else {})


def to(id, rank="normal"):
    return claim("wikibase-entityid", {"id": id}, rank)


def time(text, precision):
    return claim("time", {"time": text, "precision": precision})


def prop(id, label):
    return {"id": id, "type": "property", "labels": {"en": {"value": label}}}


DUMP = [
    prop("P19", "place of birth"),
    prop("P69", "educated at"),
    prop("P569", "date of birth"),
    prop("P571", "inception"),
    prop("P1082", "population"),
    item(
        "Q1",
        "Ada Lovelace (writer)",
        {
            "P31": [to("Q5")],
            "P19": [to("Q2", "deprecated"), to("Q3"), to("Q4", "preferred")],
            "P69": [to("Q3")],
            "P569": [time("+1815-12-10T00:00:00Z", 11)],
            "P18": [claim("string", "a picture")],
        },
    ),
    item("Q5", "human", {}, page=False),
    item("Q2", "Nowhere", {}),
    item("Q3", "Paris", {"P571": [time("+1200-00-00T00:00:00Z", 7)]}),
    item(
        "Q4",
        "London",
        {
            "P571": [time("+0047-00-00T00:00:00Z", 9), time("+0050-00-00T00:00:00Z", 9)],
            "P1082": [claim("quantity", {"amount": "+8799800", "unit": "1"})],
        },
    ),
    {"id": "Q7", "labels": [], "claims": []},
]


def test_a_dump_of_wikidata(tmp_path):
    path = tmp_path / "dump.json.gz"
    with gzip.open(path, "wt") as file:
        file.write("[\n" + ",\n".join(map(json.dumps, DUMP)) + "\n]\n")
    assert is_wikidata(path)
    graph = read_wikidata(path)
    assert sorted(graph.entities) == ["Q1", "Q2", "Q3", "Q4"]  # a human has a label and no page
    ada = graph.entities["Q1"]
    assert ada.names == ("Ada Lovelace (writer)", "Ada Lovelace (writer) again") and ada.kind == "person"
    assert ada.url == "https://en.wikipedia.org/wiki/Ada_Lovelace_(writer)"
    assert ada.attributes == {"date of birth": "10 December 1815"}
    assert graph.entities["Q3"].attributes == {}  # known to the century only
    assert graph.entities["Q4"].attributes == {"population": "8799800"}  # two inceptions are none
    assert [f for f in graph.facts if not f.is_value] == [Fact("Q1", "place of birth", "Q4", ada.url)]


def test_what_is_no_dump(tmp_path):
    assert not is_wikidata(written(tmp_path, ADA))
    with pytest.raises(InputError, match="graph.jsonl:2: no JSON"):
        read_wikidata(written(tmp_path, DUMP[0], "{"))
    with pytest.raises(InputError, match="no facts between items"):
        read_wikidata(written(tmp_path, *DUMP[5:]))
    with pytest.raises(InputError, match="No such file"):
        is_wikidata(tmp_path / "absent.jsonl")


KEYS = st.sampled_from(["en", "value", "mainsnak", "datavalue", "rank", "id"])
ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inside: st.lists(inside) | st.dictionaries(KEYS, inside),
    max_leaves=6,
)


@given(ANYTHING)
def test_rows_of_any_shape_are_left_out(value):
    """Only a label and a page make an item; whatever else stands there may be anything."""
    row = {"id": "Q1", "labels": value, "sitelinks": value, "claims": {"P1": value}, "aliases": value}
    assert isinstance(wikidata._label(row) + wikidata._title(row), str)
    row["labels"] = {"en": {"value": "x"}}
    assert wikidata._entity(row, {"Q1": "x"}, {"P1": "y"}).names[0] == "x"
    assert all(fact.subject == "Q1" for fact in wikidata._facts(row, {"Q1": row}, {"P1": "y"}))
