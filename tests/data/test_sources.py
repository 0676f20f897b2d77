import collections
import copy
import gzip
import json
import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.data.sources import read_pages, read_questions
from carr_jax.records import InputError, Question, Rubric
from carr_jax.rewards.lint import connected_to_answer
from carr_jax.rewards.matching import mentions
from carr_jax.search.world import WorldConfig, build_world
from carr_jax.stored import to_json

SHARED = pathlib.Path(__file__).parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not (SHARED / "twowiki.jsonl").exists(), reason="the shared multi-hop files are not next to this repository"
)
WIKI = "https://en.wikipedia.org/wiki/"


def row(dataset, **fields):
    plain = {
        "id": "q1",
        "dataset": dataset,
        "split": "train",
        "type": "x",
        "question": "Who?",
        "answer": "Bo Lind",
        "answer_aliases": [],
        "answer_type": "entity",
        "rubric_ok": True,
        "support_titles": ["A"],
    }
    return plain | fields


CHAIN = row(
    "2wikimultihopqa",
    answer_role="last_object",
    answer_aliases=["Bo"],
    support_titles=["The Ship? (film)", "Ada Holm"],
    hops=[
        {
            "subject": "The Ship? (film)",
            "relation": "director",
            "object": "Ada",
            "object_aliases": ["Ada Holm"],
            "support_title": "The Ship? (film)",
        },
        {
            "subject": "Ada Holm",
            "relation": "spouse",
            "object": "Bo Lind",
            "support_title": "Ada Holm",
            "refs": [1],
        },
    ],
)
COMPARED = row(
    "2wikimultihopqa",
    answer_role="subject",
    answer="Old",
    support_titles=["Old", "New", "X", "Y"],
    hops=[
        {"subject": "New", "relation": "director", "object": "X", "support_title": "New"},
        {"subject": "Old", "relation": "director", "object": "Y", "support_title": "Old"},
        {
            "subject": "X",
            "relation": "date of birth",
            "object": "2 May 1950",
            "support_title": "X",
            "refs": [1],
        },
        {
            "subject": "Y",
            "relation": "date of birth",
            "object": "June 1, 1940",
            "support_title": "Y",
            "refs": [2],
        },
    ],
)
MUSIQUE = row(
    "musique_ans",
    answer="1874",
    answer_type="date",
    hops=[
        {
            "subquestion": "Hull >> mood {odd}",
            "subject": "Hull",
            "relation": "mood {odd}",
            "answer": "Kemi",
            "support_title": "Hull",
        },
        {"subquestion": "when was #1 founded?", "answer": "1874", "support_title": "Kemi & Sons", "refs": [1]},
    ],
)
HOTPOT = row("hotpotqa_distractor", rubric_ok=False, supports=[{"support_title": "A"}, {"support_title": "B"}])


def write(path, rows):
    text = "\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text + "\n\n")
    return path


def one(tmp_path, question_row):
    return read_questions(write(tmp_path / "q.jsonl", [question_row]))[0]


def test_own_rows_come_back_unchanged(tmp_path):
    questions = build_world(
        WorldConfig(entities_per_kind=20, distractors=0, look_alikes=0, obfuscate=0.5)
    ).questions("sft", 40)
    assert read_questions(write(tmp_path / "q.jsonl.gz", map(to_json, questions))) == questions


def test_chain_becomes_rubrics_that_end_in_the_answer(tmp_path):
    question = one(tmp_path, CHAIN)
    film = f"{WIKI}The_Ship%3F_(film)"
    assert question.rubrics == (
        Rubric("The director of The Ship? (film) was <E1>.", (film,)),
        Rubric("<E0> was the spouse of <E1>.", (f"{WIKI}Ada_Holm",)),
    )
    assert question.entities == {"E0": ("Bo Lind", "Bo"), "E1": ("Ada", "Ada Holm")}
    assert question.gold_urls == (film, f"{WIKI}Ada_Holm")
    assert (question.hops, question.source, question.split) == (2, "2wikimultihopqa", "train")
    assert question.metadata["walk"][1] == {
        "subject": "<E1>",
        "relation": "spouse",
        "object": "<E0>",
        "url": f"{WIKI}Ada_Holm",
        "query": "<E1> spouse",
    }


def test_comparison_ties_the_branches_in_the_direction_of_the_dates(tmp_path):
    question = one(tmp_path, COMPARED)
    assert [r.text for r in question.rubrics] == [
        "The director of New was <E1>.",
        "The director of <E0> was <E2>.",
        "<E1> was born on <E3>.",
        "<E2> was born on <E4>.",
        "<E4> is earlier than <E3>.",
    ]
    assert question.rubrics[-1].relation == "earlier"
    assert question.rubrics[-1].support_urls == ()
    assert question.entities["E0"] == ("Old",)
    later = one(tmp_path, COMPARED | {"answer": "New"})
    assert (later.rubrics[-1].text, later.rubrics[-1].relation) == ("<E3> is later than <E4>.", "later")


def test_subquestions_become_rubrics_and_queries(tmp_path):
    question = one(tmp_path, MUSIQUE)
    assert [r.text for r in question.rubrics] == [
        'The "mood {odd}" of Hull is <E1>.',
        '"when was <E1> founded?" is answered by <E0>.',
    ]
    assert question.rubrics[1].support_urls == (f"{WIKI}Kemi_&_Sons",)
    assert question.answer_type == "date"
    assert question.entities == {"E0": ("1874",), "E1": ("Kemi",)}
    first, last = question.metadata["walk"]
    assert first["query"] == "Hull mood {odd}"
    assert last["query"] == last["subquestion"] == "when was <E1> founded?"


def test_outcome_only_rows_have_no_rubrics(tmp_path):
    yes = COMPARED | {"answer_role": "yesno", "rubric_ok": False, "answer": "yes", "answer_type": "yesno"}
    for outcome_only in (HOTPOT, yes):
        question = one(tmp_path, outcome_only)
        assert (question.rubrics, question.entities, question.metadata["walk"]) == ((), {}, [])
        assert question.hops >= 2


def test_a_directory_gives_all_questions_and_the_corpus_their_addresses(tmp_path):
    write(tmp_path / "b.jsonl", [MUSIQUE | {"id": "b"}])
    write(tmp_path / "a.jsonl.gz", [CHAIN | {"id": "a", "split": "dev"}])
    write(
        tmp_path / "corpus.jsonl.gz",
        [{"url": "https://example.org/hull", "title": "Hull", "text": "x", "n": 1}],
    )
    assert [q.id for q in read_questions(tmp_path)] == ["a", "b"]
    assert [q.id for q in read_questions(tmp_path, split="dev")] == ["a"]
    assert read_questions(tmp_path)[1].rubrics[0].support_urls == ("https://example.org/hull",)
    assert [p.title for p in read_pages(tmp_path)] == ["Hull"]
    with pytest.raises(ValueError, match="no questions of split 'tset'"):
        read_questions(tmp_path, split="tset")


def test_missing_files_say_so(tmp_path):
    for read in (read_questions, read_pages):
        with pytest.raises(InputError, match=tmp_path.name):
            read(tmp_path)
        with pytest.raises(InputError, match="nowhere.jsonl"):
            read(tmp_path / "nowhere.jsonl")


BAD = {
    "Expecting": "{broken",
    "JSON object": "[1]",
    "the key 'question' is missing": {k: v for k, v in CHAIN.items() if k != "question"},
    "the key 'hops' is missing": {k: v for k, v in CHAIN.items() if k != "hops"},
    "unknown dataset 'triviaqa'": CHAIN | {"dataset": "triviaqa"},
    "'answer' must be a text": CHAIN | {"answer": 7},
    "answer_aliases must be a list": CHAIN | {"answer_aliases": "Bo"},
    "answer_role": CHAIN | {"answer_role": "other"},
    "no rubric mentions <E0>": to_json(Question("o", "q", "a", rubrics=(Rubric("<E1> x"),))),
    "cannot tell which": copy.deepcopy(COMPARED),
    "index out of range": MUSIQUE | {"hops": [MUSIQUE["hops"][0] | {"subquestion": "#2?", "relation": ""}]},
    "surrogates": CHAIN | {"question": "\ud800"},
}
BAD["cannot tell which"]["hops"][3]["object"] = "May 1950"


def test_all_bad_rows_are_reported_together_with_file_line_and_reason(tmp_path):
    path = write(tmp_path / "q.jsonl", [CHAIN, *BAD.values()])
    with pytest.raises(ValueError, match=f"^{len(BAD)} bad rows") as caught:
        read_questions(path)
    lines = str(caught.value).split("\n")
    assert len(lines) == 1 + 10 + 1
    assert lines[-1] == f"... and {len(BAD) - 10} more"
    for number, (reason, line) in enumerate(zip(BAD, lines[1:-1], strict=False), 2):
        assert line.startswith(f"{path}:{number}: ")
        assert reason in line


@pytest.mark.parametrize("reason", BAD)
def test_each_bad_row_is_refused(tmp_path, reason):
    with pytest.raises(ValueError, match="1 bad rows") as caught:
        one(tmp_path, BAD[reason])
    assert reason in str(caught.value)


def test_an_id_may_stand_once(tmp_path):
    with pytest.raises(ValueError, match=r"q\.jsonl:2: the id 'q1' is taken by .*q\.jsonl:1"):
        read_questions(write(tmp_path / "q.jsonl", [CHAIN, MUSIQUE]))


def test_a_cut_archive_is_one_clear_error(tmp_path):
    path = write(tmp_path / "q.jsonl.gz", [CHAIN] * 50)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        read_questions(path)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=3),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_no_value_in_a_row_escapes_the_report(value, data):
    base = data.draw(st.sampled_from([CHAIN, COMPARED, MUSIQUE, HOTPOT, to_json(Question("o", "q", "a"))]))
    key = data.draw(st.sampled_from(sorted(base)))
    with tempfile.TemporaryDirectory() as name:
        path = write(pathlib.Path(name) / "q.jsonl", [base | {key: value}])
        try:
            assert read_questions(path)[0].question
        except ValueError as error:
            assert str(error).startswith("1 bad rows")


# ------------------------------------------------------------------------------------------- shared files


@pytest.fixture(scope="module")
def shared():
    return read_questions(SHARED)


@needs_shared
def test_shared_counts_equal_their_description(shared):
    sizes = collections.Counter((q.source, q.split) for q in shared)
    assert sizes == {
        ("2wikimultihopqa", "train"): 781,
        ("2wikimultihopqa", "dev"): 150,
        ("musique_ans", "train"): 395,
        ("musique_ans", "dev"): 79,
        ("hotpotqa_distractor", "train"): 150,
        ("hotpotqa_distractor", "dev"): 50,
    }
    judged = collections.Counter((q.source, q.split) for q in shared if q.rubrics)
    assert judged == {
        ("2wikimultihopqa", "train"): 577,
        ("2wikimultihopqa", "dev"): 136,
        ("musique_ans", "train"): 395,
        ("musique_ans", "dev"): 79,
    }
    assert sum(q.answer_type == "yesno" for q in shared) == 213 + 17


@needs_shared
def test_shared_types_and_answers_equal_their_description(shared):
    types = collections.Counter((q.source, q.metadata["type"]) for q in shared)
    assert types == {
        ("2wikimultihopqa", "compositional"): 394,
        ("2wikimultihopqa", "comparison"): 261,
        ("2wikimultihopqa", "bridge_comparison"): 199,
        ("2wikimultihopqa", "inference"): 77,
        ("musique_ans", "2hop"): 303,
        ("musique_ans", "3hop1"): 88,
        ("musique_ans", "3hop2"): 38,
        ("musique_ans", "4hop1"): 30,
        ("musique_ans", "4hop3"): 15,
        ("hotpotqa_distractor", "bridge"): 142,
        ("hotpotqa_distractor", "comparison"): 58,
    }
    hops = collections.Counter()
    for question in shared:
        hops[question.source] += question.hops
    assert hops["2wikimultihopqa"] == 2272 and hops["musique_ans"] == 1164


@needs_shared
def test_every_shared_row_with_evidence_has_its_rubrics_and_gold_entities(shared):
    """One rubric for each hop, and one more that ties the values of a comparison; every entity has a name.

    All that the description counts but for the held-out rows: 2,182 and 1,424 rubrics with them.
    """
    rows = {}
    for name in ("twowiki", "musique"):
        rows |= {row["id"]: row for row in map(json.loads, (SHARED / f"{name}.jsonl").open())}
    rubrics = collections.Counter()
    for question in (q for q in shared if q.id in rows):
        row = rows[question.id]
        compares = row.get("answer_role") == "subject"
        assert len(question.rubrics) == (len(row["hops"]) + compares if row["rubric_ok"] else 0)
        assert set(question.entities) == {e for r in question.rubrics for e in r.entities}
        gold = {name for names in question.entities.values() for name in names}
        objects = {hop.get("object", hop.get("answer")) for hop in row["hops"]}
        assert gold >= objects | {row["answer"]} or not row["rubric_ok"]
        rubrics[question.source] += len(question.rubrics)
    # Chains of two hops, comparisons of two with a tie, of four with a tie; MuSiQue's hops.
    assert rubrics["2wikimultihopqa"] == (394 + 77) * 2 + 107 * 3 + 135 * 5 == 1938 < 2182
    assert rubrics["musique_ans"] == 303 * 2 + (88 + 38) * 3 + (30 + 15) * 4 == 1164 < 1424


@needs_shared
def test_shared_rubrics_are_connected_and_cite_pages_of_the_corpus(shared):
    pages = read_pages(SHARED)
    assert len(pages) == 15_400
    urls = {page.url for page in pages}
    for question in shared:
        assert all(connected_to_answer(question.rubrics))
        assert set(question.gold_urls) <= urls
        assert all(set(r.support_urls) <= set(question.gold_urls) for r in question.rubrics)
        assert len(question.metadata["walk"]) == (question.hops if question.rubrics else 0)


@needs_shared
def test_shared_titles_have_the_same_address_without_the_corpus(shared, tmp_path):
    for name in ("twowiki", "musique", "hotpotqa"):
        (tmp_path / f"{name}.jsonl").write_bytes((SHARED / f"{name}.jsonl").read_bytes())
    assert [q.gold_urls for q in read_questions(tmp_path)] == [q.gold_urls for q in shared]


@needs_shared
def test_shared_objects_stand_on_their_support_page(shared):
    """The page that a rubric cites mentions the entity that the rubric finds."""
    text = {page.url: f"{page.title}\n{page.text}" for page in read_pages(SHARED)}
    found = collections.Counter()
    for question in shared[::5]:
        for step in question.metadata["walk"]:
            names = question.entities[step["object"][1:-1]]
            found[mentions(text[step["url"]], names) is not None] += 1
    assert found.total() > 400
    assert found[True] / found.total() > 0.97
