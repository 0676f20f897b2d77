"""The published forms of the three sets give the questions that the bundle's rows give."""

import dataclasses
import json
import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.data.originals import answer_type
from carr_jax.data.rows import question_from_row
from carr_jax.data.sources import read_questions
from carr_jax.records import InputError, Rubric

SHARED = pathlib.Path(__file__).parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not (SHARED / "twowiki.jsonl").exists(), reason="the shared multi-hop files are not next to this repository"
)
WIKI = "https://en.wikipedia.org/wiki/"
BRIDGE = {
    "_id": "w1",
    "type": "bridge_comparison",
    "question": "Which film has the director who was born earlier, OLD or New (film)?",
    "answer": "OLD",
    "context": [["Old", ["Old is a film by Y."]], ["Y (director)", ["Y was born in 1940."]]],
    "supporting_facts": [["New (film)", 0], ["Old", 0], ["X", 0], ["Y (director)", 0], ["X", 1]],
    "evidences": [
        ["New", "director", "X"],
        ["Old", "director", "Y"],
        ["X", "date of birth", "2 May 1950"],
        ["Y", "date of birth", "June 1, 1940"],
    ],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Noise", "paragraph_text": "", "is_supporting": False},
        {"idx": 1, "title": "Hull", "paragraph_text": "", "is_supporting": True},
        {"idx": 2, "title": "Kemi", "paragraph_text": "", "is_supporting": True},
    ],
    "question": "When was the twin town of Hull founded?",
    "question_decomposition": [
        {"id": 1, "question": "Hull >> twin town", "answer": "Kemi", "paragraph_support_idx": 1},
        {"id": 2, "question": "when was #1 founded?", "answer": "1874", "paragraph_support_idx": 2},
    ],
    "answer": "1874",
    "answer_aliases": ["in 1874"],
    "answerable": True,
}
HOTPOT = {
    "_id": "h1",
    "type": "bridge",
    "level": "hard",
    "question": "Who?",
    "answer": "Bo",
    "supporting_facts": [["A", 0], ["B", 2], ["A", 1]],
    "context": [["A", ["x", "y"]]],
}


def test_a_comparison_is_worked_out_from_triples():
    question = question_from_row(BRIDGE, {}, "dev")
    assert [r.text for r in question.rubrics] == [
        "The director of New was <E1>.",
        "The director of <E0> was <E2>.",
        "<E1> was born on <E3>.",
        "<E2> was born on <E4>.",
        "<E4> is earlier than <E3>.",
    ]
    assert question.rubrics[0].support_urls == (f"{WIKI}New_(film)",)
    assert question.entities["E0"] == ("OLD", "Old")
    assert question.entities["E2"] == ("Y", "Y (director)")
    assert (question.split, question.hops, question.source) == ("dev", 4, "2wikimultihopqa")
    assert len(question.gold_urls) == 4


def test_the_hub_writes_lists_as_columns_or_as_texts():
    facts, triples = BRIDGE["supporting_facts"], BRIDGE["evidences"]
    columns = {
        "supporting_facts": {"title": [f[0] for f in facts], "sent_id": [f[1] for f in facts]},
        "evidences": [{"fact": s, "relation": r, "entity": o} for s, r, o in triples],
    }
    columns["evidences"] = {key: [t[key] for t in columns["evidences"]] for key in columns["evidences"][0]}
    as_texts = {key: json.dumps(BRIDGE[key]) for key in columns}
    expected = question_from_row(BRIDGE, {})
    for other in (columns, as_texts):
        plain = {key: value for key, value in BRIDGE.items() if key != "_id"} | {"id": "w1"}
        assert question_from_row(plain | other, {}) == expected


def test_a_decomposition_becomes_hops():
    question = question_from_row(MUSIQUE, {"Kemi": "https://k.example"})
    assert question.rubrics == (
        Rubric('The "twin town" of Hull is <E1>.', (f"{WIKI}Hull",)),
        Rubric('"when was <E1> founded?" is answered by <E0>.', ("https://k.example",)),
    )
    assert question.entities == {"E0": ("1874", "in 1874"), "E1": ("Kemi",)}
    assert (question.answer_type, question.metadata["type"]) == ("date", "2hop")


def test_supporting_sentences_give_pages_only():
    question = question_from_row(HOTPOT, {})
    assert (question.rubrics, question.hops) == ((), 2)
    assert question.gold_urls == (f"{WIKI}A", f"{WIKI}B")


@pytest.mark.parametrize(
    "evidence",
    [
        [["Old", "country", "Peru"], ["New", "country", "Chad"]],  # no order
        [["Old", "inception", "1874"], ["New", "inception", "1874"]],  # no difference
        [["Old", "director", "X"], ["Old", "director", "Y"], ["New", "director", "Z"]],  # who has more
    ],
)
def test_what_cannot_be_compared_is_a_question_without_rubrics(evidence):
    facts = [["Old", 0], ["New", 0]]
    row = BRIDGE | {"type": "comparison", "evidences": evidence, "supporting_facts": facts}
    assert question_from_row(row, {}).rubrics == ()


def test_an_answer_that_no_evidence_names_gets_no_rubrics():
    evidence = [["Old", "director", "Y"], ["Y", "country", "Peru"]]
    facts = [["Old", 0], ["Y", 0]]
    row = BRIDGE | {"type": "compositional", "evidences": evidence, "supporting_facts": facts}
    assert question_from_row(row | {"answer": "Chad"}, {}).rubrics == ()
    assert len(question_from_row(row | {"answer": "PERU"}, {}).rubrics) == 2


BAD = {
    "take MuSiQue-Ans": MUSIQUE | {"answerable": False},
    "question_decomposition is empty": MUSIQUE | {"question_decomposition": []},
    "no supporting fact is on a page of": BRIDGE | {"supporting_facts": [["Other", 0]]},
    "evidences are empty": BRIDGE | {"evidences": []},
    "three texts": BRIDGE | {"evidences": [["Old", "director", 1]]},
    "expected a list of lists": BRIDGE | {"evidences": [1]},
    "name no pages": HOTPOT | {"supporting_facts": []},
    "'id' must be a text": {k: v for k, v in HOTPOT.items() if k != "_id"},
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_rows_say_what_is_wrong(reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        question_from_row(BAD[reason], {})


def test_a_json_list_is_read_and_its_name_tells_the_split(tmp_path):
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text(json.dumps([HOTPOT, BRIDGE]))
    assert [q.split for q in read_questions(path)] == ["dev", "dev"]
    path.write_text(json.dumps([HOTPOT, BAD["three texts"]]))
    with pytest.raises(InputError, match=r"v1\.json:2: an evidence must be three texts"):
        read_questions(path)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("No", "yesno"), ("2 May 1950", "date"), ("1874", "date"), ("12 km", "number"), ("Bo Lind", "entity")],
)
def test_answer_types_are_those_that_a_text_tells(answer, kind):
    assert answer_type(answer) == kind


@given(
    st.sampled_from([BRIDGE, MUSIQUE, HOTPOT]),
    st.recursive(st.none() | st.integers() | st.text(max_size=4), st.lists, max_leaves=4),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_no_value_in_a_row_escapes_the_report(row, value, data):
    key = data.draw(st.sampled_from(sorted(row)))
    value = data.draw(st.sampled_from([value, [value], [[value, value, value]], {"title": value}]))
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "q.json"
        path.write_text(json.dumps([row | {key: value}]))
        try:
            assert read_questions(path)[0].question
        except InputError as error:
            assert str(error).startswith("1 bad rows")


# ------------------------------------------------------------------------------------------------- shared files


def published(row):
    """A row of the bundle as its authors published it; the passages that are no support are left out."""
    plain = {key: row[key] for key in ("type", "question", "answer", "answer_aliases")}
    facts = [[title, 0] for title in row["support_titles"]]
    if row["dataset"] == "musique_ans":
        titles = list(dict.fromkeys(row["support_titles"]))
        parts = [
            {"question": h["subquestion"], "answer": h["answer"]}
            | {"paragraph_support_idx": titles.index(h["support_title"])}
            for h in row["hops"]
        ]
        paragraphs = [{"idx": i, "title": title} for i, title in enumerate(titles)]
        return plain | {"id": row["id"], "paragraphs": paragraphs, "question_decomposition": parts}
    plain |= {"_id": row["id"], "supporting_facts": facts}
    if row["dataset"] == "2wikimultihopqa":
        plain["evidences"] = [[h["subject"], h["relation"], h["object"]] for h in row["hops"]]
    return plain


@needs_shared
@pytest.mark.parametrize("name", ["twowiki", "musique", "hotpotqa"])
def test_shared_rows_give_the_same_question_in_their_published_form(name):
    """Rubrics, entities, pages and walks of all rows; only the answer's type is told better by the bundle."""
    for line in (SHARED / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        ours, theirs = question_from_row(row, {}), question_from_row(published(row), {}, row["split"])
        kept = {"answer_type": ours.answer_type, "answer_aliases": ours.answer_aliases}
        metadata = theirs.metadata | {"upstream_split": row["upstream_split"]}
        assert dataclasses.replace(theirs, metadata=metadata, **kept) == ours
