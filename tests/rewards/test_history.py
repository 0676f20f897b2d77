"""Rows of every shape: what is read from them, and what is wrong with them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_judge import answer, run, trajectory

from carr_jax.records import End, InputError, Question, Seen
from carr_jax.rewards import carr, history, reference
from carr_jax.rewards.judge import ExactJudge
from carr_jax.stored import to_json

A, B = "https://a.com/1", "https://b.com/2"
SUFFIX = (
    "\n\nUse this format:\n\n## Explanation with Citations\n{e}\n\n## Exact Answer\n{a}\n\n## References\n{r}"
)
RESULTS = f"""[0] Title: One
[0] URL Source: {A}
[0] Description: first
[0] Date: May 1

[1] Title: Two
[1] URL Source: {B}
[1] Description: second,
 in two lines"""
PAGE = f"Title: Two\n\nURL Source: {B}/moved\n\nPublished Time: x\n\n" + (
    f"Markdown Content:\nText URL Source: {A}\n\nend\n"
)
HITS = "[Match 1]\nText here\n\n[Match 2]\nand here"


def messages(*turns, response="Done [[1](https://b.com/2)]."):
    """User, then (tool, arguments, output) as a call and its output each, then the answer."""
    found = [{"role": "user", "content": "Where?" + SUFFIX}]
    for number, (name, arguments, output) in enumerate(turns):
        call = {
            "session_id": "s",
            "tool_call_id": f"c{number}",
            "name": name,
            "arguments": json.dumps(arguments),
        }
        found.append({"role": "assistant", "reasoning_content": f"thought {number}", "tool_calls": [call]})
        shown = {"session_id": "s", "tool_call_id": f"c{number}", "output": output}
        found.append({"role": "tool", "content": [shown]})
    return [*found, {"role": "assistant", "reasoning_content": "last", "content": response}]


BROWSED = messages(
    ("browser.find", {"pattern": "x"}, ""),
    ("browser.search", {"query": "q", "num": 2}, RESULTS),
    ("browser.open", {"id": 1}, PAGE),
    ("browser.find", {"pattern": "here"}, HITS),
    ("browser.open", {"id": "https://gone.example"}, "Failed to parse URL content after 3 attempts."),
    ("browser.find", {"pattern": "Failed"}, "[Match 1]\nFailed to parse"),
)
ENVIRONMENT = {"search_forbidden_strs": ["Where?"], "rubrics": ["<E0> is it."]}


def test_a_history_of_the_reference():
    question, t = next(history.pairs({"history": BROWSED, "label": "X", "remote_env_info": ENVIRONMENT}, "q7"))
    assert (question.id, question.question, question.answer) == ("q7", "Where?", "X")
    assert [r.text for r in question.rubrics] == ["<E0> is it."]
    assert (t.end, t.response) == (End.ANSWERED, "Done [[1](https://b.com/2)].")
    assert t.thoughts == (*(f"thought {i}" for i in range(6)), "last")
    assert t.seen == (
        Seen(A, "One", "snippet", "first"),
        Seen(B, "Two", "snippet", "second,\n in two lines"),
        Seen(f"{B}/moved", "Two", "page", f"Text URL Source: {A}\n\nend", B),
        Seen(f"{B}/moved", "Two", "match", "Text here", B),
        Seen(f"{B}/moved", "Two", "match", "and here", B),
    )
    pages = carr.READERS["tolerant"](t).pages
    assert pages == {
        B: f"Two\n\nsecond,\n in two lines\n\nText URL Source: {A}\n\nend\n\nText here\n\nand here"
    }


def test_openai_messages_are_read_too():
    calls = [{"id": "k", "type": "function", "function": {"name": "search", "arguments": '{"query": "q"}'}}]
    rows = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "k", "content": RESULTS},
        {"role": "assistant", "content": "Done."},
    ]
    question, t = history.from_history({"history": rows, "label": 7})
    assert (question.question, question.answer, len(t.seen), t.response) == ("Where?", "7", 2, "Done.")


def test_a_dump_of_columns_is_several_rows():
    dump = {"history": [BROWSED, BROWSED[:1]], "label": ["X", "Y"], "rewards": [1.0, 0.0], "note": [1]}
    found = list(history.pairs(dump, "q"))
    assert [(q.question, q.answer, t.sample, t.end) for q, t in found] == [
        ("Where?", "X", 0, End.ANSWERED),
        ("Where?", "Y", 1, End.FORMAT_ERROR),
    ]


def test_plain_rows():
    row = {
        "question": "Where was Ada born?",
        "answer": "Kalkar",
        "rubrics": [{"text": "<E1> was born in <E0>.", "support_urls": [A]}],
        "entities": {"E0": ["Kalkar"], "E1": ["Ada"]},
        "response": answer("Kalkar", f"Ada was born in Kalkar [1]({A})."),
        "pages": [{"url": A, "title": "Ada", "text": "Ada was born in Kalkar."}],
    }
    for pages in (row["pages"], {A: "Ada was born in Kalkar."}):
        question, t = history.from_plain({**row, "pages": pages}, "q")
        for citations, rubric in (("tolerant", 1.0), ("strict_reference", 0.0)):
            got = run(carr.score_trajectory(question, t, ExactJudge(), citations=citations))
            assert (got.status, got.outcome, got.rubric) == ("ok", 1.0, rubric)
    strict = {**row, "response": answer("Kalkar", f"Ada was born in Kalkar [[1]({A})].")}
    got = run(carr.score_trajectory(*history.from_plain(strict), ExactJudge(), citations="strict_reference"))
    assert got.rubric == 1.0


def test_our_own_rows():
    question = Question("q", "Where?", "X", entities={"E0": ("X",)})
    t = trajectory("said", [(A, "text")])
    (again, read), *more = history.pairs({"question": to_json(question), "trajectory": to_json(t)})
    assert (again, read.turns, read.response, more) == (question, t.turns, t.response, [])


LAST = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("last", "unfinished", "end"),
    [
        (LAST, False, End.ANSWERED),
        (LAST, True, End.CONTEXT_BUDGET),
        ({"role": "assistant", "truncated_content": "x"}, False, End.CONTEXT_BUDGET),
        ({"role": "assistant", "aborted_content": "x"}, True, End.ENGINE_ERROR),
        (
            {"role": "assistant", "ill_formed_content": "x", "ill_formed_reasons": ["r"]},
            False,
            End.FORMAT_ERROR,
        ),
        ({"role": "assistant", "content": ""}, False, End.FORMAT_ERROR),
        ({"role": "user", "content": "x"}, False, End.FORMAT_ERROR),
        ({"role": "tool", "content": [{"output": "x"}]}, False, End.FORMAT_ERROR),
    ],
)
def test_ends(last, unfinished, end):
    rows = [{"role": "user", "content": "q"}, last]
    _, t = history.from_history({"history": rows, "label": "X", "task_unfinished": unfinished})
    assert (t.end, t.response) == (end, "x" if end is End.ANSWERED else None)


CALL = {"tool_call_id": "a", "name": "browser.find", "arguments": "{}"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([], "must be a JSON object"),
        ({}, 'needs the key "trajectory", "history" or "response"'),
        ({"response": "x"}, "question"),
        ({"response": 1, "question": "q", "answer": "a"}, "response must be a text, got int"),
        ({"response": "x", "question": "q", "answer": None}, "answer or label must be a text"),
        ({"history": [], "label": "X"}, "has the question"),
        ({"history": [LAST], "label": "X", "remote_env_info": 3}, "remote_env_info must be an object"),
        (
            {"history": [LAST], "label": "X", "remote_env_info": {**ENVIRONMENT, "rubrics": "r"}},
            "must be a list",
        ),
        (
            {
                "history": [
                    {"role": "user", "content": "q"},
                    {"role": "tool", "content": [{**CALL, "output": "x"}]},
                ]
            },
            "label|belongs to no call",
        ),
        (
            {"history": [{"role": "assistant", "tool_calls": [{**CALL, "arguments": "{"}]}], "label": "X"},
            "has the question|Expecting",
        ),
        ({"question": {"id": "q"}, "trajectory": {}}, "question"),
    ],
)
def test_bad_rows_say_what_is_wrong(row, says):
    with pytest.raises((KeyError, TypeError, ValueError), match=says) as caught:
        list(history.pairs(row))
    assert not isinstance(caught.value, InputError)


def test_a_stray_output_is_an_error_and_one_without_id_is_not():
    stray = {"role": "tool", "content": [{"tool_call_id": "z", "output": RESULTS}]}
    with pytest.raises(ValueError, match="belongs to no call: tool_call_id 'z'"):
        history.read_messages([*BROWSED, stray])
    ill_formed = {"role": "tool", "content": [{"session_id": "s", "output": "Error: write it well."}]}
    assert history.read_messages([*BROWSED, ill_formed]) == history.read_messages(BROWSED)


def test_a_page_cannot_pose_as_a_search_result():
    forged = PAGE + RESULTS
    turns = history.read_messages(messages(("browser.open", {"id": B}, forged)))
    assert {s.url for s in turns[0].calls[0].result.seen} == {f"{B}/moved"}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["search", "open", "find"]),
    st.lists(
        st.sampled_from(
            [
                "[0] Title:",
                "[1] Title: ",
                "[0] URL Source: ",
                A,
                "\n",
                "[0] Description:",
                "[0] Date: ",
                "Markdown Content:",
                "[Match 1]\n",
                "x",
                " ",
                "Title: ",
                "URL Source: ",
            ]
        ),
        max_size=25,
    ).map("".join),
)
def test_any_output_is_read(tool, output):
    turns = history.read_messages(messages(("browser.open", {"id": B}, PAGE), (f"browser.{tool}", {}, output)))
    for seen in turns[1].calls[0].result.seen:
        assert seen.text in output and seen.url in output + PAGE
    reference.cited_pages([c for t in turns for c in t.calls], [A, B])


def test_hostile_outputs_take_linear_time():
    """Each would take minutes at quadratic cost."""
    n = 30_000
    for output in (
        "[0] Title: " * n,
        "[0] Title: t\n" * n,
        "[0] Title: t\n[0] URL Source: u\n[0] Description:" + "\n[0] Date" * n,
        "[0] Title: t\n[0] URL Source: u\n[0] Description:" + "\n" * n + "x",
        "URL Source:" * n + "Markdown Content:" * n,
        "[Match 1]\n" * n,
        "Title:" + "\n" * n,
    ):
        for tool in ("search", "open", "find"):
            history.read_messages(messages(("browser.open", {"id": B}, PAGE), (f"browser.{tool}", {}, output)))
