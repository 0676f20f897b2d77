"""Rows of CaRR, DeepDive and WebShaper become questions whose rubrics have placeholders only."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.data.rows import question_from_row
from carr_jax.data.sources import read_questions
from carr_jax.records import InputError, Question, Rubric
from carr_jax.stored import question_from_json, to_json

ASKED = "A lighthouse stands on an island named after a botanist. When was it lit?"
SUFFIX = "\n\nAnswer so:\n\n## Explanation with Citations\n{short}\n## Exact Answer\n{it}"
RUBRICS = ["<E1> is an island named after <E2>.", "<E3> stands on <E1>.", "<E0> is when <E3> was lit."]
TRAIN = {
    "source": "deepsearch_with_browser",
    "input_messages": [{"role": "user", "content": ASKED + SUFFIX}],
    "label": "1871",
    "tools": [{"name": "browser.search", "description": "", "parameters": {}}],
    "metadata": {
        "remote_env_info": {
            "search_forbidden_strs": [ASKED],
            "rubrics": RUBRICS,
            "rubric_reward_ratio": 0.3,
        },
        "topic": "islands",
    },
}
EVALUATION = TRAIN | {
    "source": "deepsearch_with_browser_eval",
    "metadata": {"remote_env_info": {"search_forbidden_strs": [ASKED]}},
}
WEBSHAPER = {
    "id": "s1",
    "question": "Which player of a club founded in 1990 was born in Oslo?",
    "answer": "Bo Lind",
    "formalization": [
        ["V@X", "plays at", "V@Y"],
        ["V@Y", "founded in", "C@1990"],
        ["V@X", "born in", "C@Oslo"],
        ["C@Oslo", "capital of", "C@Norway"],
    ],
    "urls": ["https://a.example/bo"],
}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rollout_rows_are_read_with_their_rubrics():
    question = question_from_row(TRAIN, {})
    assert (question.question, question.answer, question.split) == (ASKED, "1871", "train")
    assert question.rubrics == tuple(map(Rubric, RUBRICS))
    assert question.entities == {}
    assert question.metadata == {"topic": "islands", "rubric_reward_ratio": 0.3}
    assert question.source == "deepsearch_with_browser"


def test_the_question_is_found_without_a_forbidden_text_too():
    metadata = {"remote_env_info": {"rubrics": RUBRICS}}
    assert question_from_row(TRAIN | {"metadata": metadata}, {}).question == ASKED
    metadata = {"remote_env_info": {"forbidden_texts": ["Another?"]}}
    assert question_from_row(TRAIN | {"metadata": metadata}, {}).question == "Another?"


def test_copies_of_an_evaluation_row_are_one_question(tmp_path):
    other = EVALUATION | {"label": "1872"}
    found = read_questions(write(tmp_path / "q.jsonl", [EVALUATION, EVALUATION, EVALUATION, other]))
    assert [(q.answer, q.split, q.rubrics) for q in found] == [("1871", "dev", ()), ("1872", "dev", ())]
    assert len({q.id for q in found}) == 2
    named = EVALUATION | {"id": 7}
    with pytest.raises(InputError, match=r"the id '7' is taken by .*q\.jsonl:1"):
        read_questions(write(tmp_path / "q.jsonl", [named, named]))


def test_flat_rows_keep_what_else_they_have():
    row = {"question": ASKED, "answer": 1871, "rubrics": RUBRICS, "topic": "islands", "level": [1, 2]}
    question = question_from_row(row, {}, "dev")
    assert (question.answer, question.split, question.source) == ("1871", "dev", "flat")
    assert question.rubrics == tuple(map(Rubric, RUBRICS))
    assert question.metadata == {"topic": "islands", "level": [1, 2]}
    records = [{"text": RUBRICS[2], "support_urls": ["https://a.example"]}, *RUBRICS[:2]]
    assert question_from_row(row | {"rubrics": records}, {}).rubrics[0].support_urls == ("https://a.example",)


def test_a_column_named_dataset_does_not_make_a_row_another_shape():
    row = {"question": ASKED, "answer": "1871", "dataset": "mine", "rubrics": RUBRICS}
    assert question_from_row(row, {}).metadata == {"dataset": "mine"}


def test_deepdive_rows_leave_their_conversations_to_the_histories():
    for conversations in ([], [{"role": "user", "content": "x"}]):
        row = {"id": 12, "question": ASKED, "answer": "1871", "conversations": conversations}
        expected = Question("12", ASKED, "1871", source="deepdive")
        assert question_from_row(row, {}) == expected


def test_triples_become_rubrics_about_variables():
    question = question_from_row(WEBSHAPER, {})
    assert [r.text for r in question.rubrics] == [
        'The "plays at" of <E0> is <E1>.',
        'The "founded in" of <E1> is 1990.',
        'The "born in" of <E0> is Oslo.',
    ]
    assert question.gold_urls == ("https://a.example/bo",)
    assert question.source == "webshaper"
    as_text = WEBSHAPER | {"formalization": json.dumps(WEBSHAPER["formalization"])}
    assert question_from_row(as_text, {}) == question


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (TRAIN | {"label": ["1871"]}, "'answer' must be a text"),
        (TRAIN | {"input_messages": [], "metadata": {}}, "has the question"),
        (TRAIN | {"metadata": {"remote_env_info": {"rubrics": "<E0> x"}}}, "rubrics must be a list"),
        (TRAIN | {"metadata": {"remote_env_info": {"rubrics": ["<E1> x"]}}}, "no rubric mentions <E0>"),
        ({"question": ASKED, "answer": "x", "rubrics": [3]}, "'text' must be a text"),
        ({"question": ASKED, "answer": "x", "answer_type": "place"}, "answer_type must be"),
        ({"question": ASKED, "answer": "x", "hops": 2**40}, "hops must be"),
        ({"question": ASKED, "answer": True}, "'answer' must be a text"),
        (WEBSHAPER | {"formalization": [["V@Y", "is", "C@x"]]}, "no triple has the answer V@X"),
        (WEBSHAPER | {"formalization": [["X", "is", "C@x"]]}, "must begin with V@ or C@"),
        (WEBSHAPER | {"formalization": [["V@X", "is"]]}, "three texts"),
        (
            WEBSHAPER | {"formalization": [["V@X", "is", "C@x"], ["V@Y", "is", "C@y"]]},
            "not connected to <E0>",
        ),
    ],
)
def test_bad_rows_say_what_is_wrong(row, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        question_from_row(row, {})


def test_bad_rows_may_be_left_out_and_are_told(tmp_path):
    told = []
    path = write(tmp_path / "q.jsonl", [TRAIN, {"question": "?"}, EVALUATION | {"label": None}])
    assert [q.answer for q in read_questions(path, on_bad=told.extend)] == ["1871"]
    assert [reason.partition(": ")[0] for reason in told] == [f"{path}:2", f"{path}:3"]


@given(st.sampled_from([TRAIN, WEBSHAPER]), st.data())
@settings(max_examples=100, deadline=None)
def test_what_is_read_once_is_read_again_from_our_own_rows(row, data):
    """Any value in any place is refused, or gives a question that survives a file of ours."""
    values = st.recursive(st.none() | st.integers() | st.text(max_size=4), st.lists, max_leaves=3)
    row = row | {data.draw(st.sampled_from([*row, "answer", "entities", "x"])): data.draw(values)}
    try:
        question = question_from_row(row, {})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return
    again = json.loads(json.dumps(to_json(question)))
    assert question_from_json(again) == question_from_row(again, {}) == question
