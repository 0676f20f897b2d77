"""The strict mode, on an invented history with the features of the reference's own fixture.

Expectations were worked out by hand from the facts about the reference (its table of citations, its layout of
web pages), and the code was compared with it once on random histories and on that fixture.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_judge import ScriptedJudge, question, run, trajectory

from carr_jax.records import ToolCall, ToolResult
from carr_jax.rewards import carr, reference

A, B = "https://a.com", "https://b.com"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        (f"[[4]({A})]", [A]),
        (f"[[4]({A}), [5]({B})]", [A, B]),
        (f"[[4]({A})][[9]({B})]", [A, B]),
        (f"[4]({A}).", []),
        (f"[4]({A}) and more", []),
        (f"[4]({A}) foo [[5]({B})]", [f"{A}) foo [[5]({B}"]),
        ("[[4](https://w.org/x_(y))]", ["https://w.org/x_(y)"]),
        ("[[4](https://w.org/a_(b),c)]", ["https://w.org/a_(b"]),
        (f"[[Wiki]({A})]", []),
        ("【4】", []),
        (f'[[1]({A} "a title")]', [f'{A} "a title"']),
        (f"[[1]({A})，[2]({B})]", [f"{A})，[2]({B}"]),
        (f"[[1](<{A}>)]", []),
        (f"[[1]({A}\n)]", []),
        (f"[[1](view-source:{A})] [[2](https://r.jina.ai/{A})]", [A]),
        (f"[[1]({A}/x)][[2]({A}/x#part)][[3]({A}/x/)]", [f"{A}/x", f"{A}/x#part", f"{A}/x/"]),
        (f"[[1]({A})]\n## References\n[[2]({B})]\n## Exact Answer\n[[3]({B})]", [A]),
        (f"[[1]({A})]\n## References\n[[2]({B})]\n## References\n", [A, B]),
    ],
)
def test_citation_table(text, urls):
    assert reference.cited_urls(text) == urls


def call(name, output, **arguments):
    return ToolCall(f"browser.{name}", arguments, ToolResult(output))


GAMES, KEEPER, HALL = (
    "https://w.example/Games_of_1902",
    "https://w.example/Keeper_(lamp)",
    "https://h.example/hall",
)
FIRST = f"""[0] Title: Games of 1902
[0] URL Source: {GAMES}
[0] Description: The games were held in Oss.
[0] Date: May 1, 2019

[1] Title: Hall
[1] URL Source: {HALL}
[1] Description: A hall.
With a second line."""
SECOND = f"""[0] Title: Another title
[0] URL Source: {GAMES}
[0] Description: Held twice. [7] Title: cut here

[1] Title: Keeper
[1] URL Source: {KEEPER}
[1] Description: A hall.
With a second line.

[2] Title: Hall again
[2] URL Source: {HALL}
[2] Description: The games were held in Oss."""
PAGE = f"Title: The keeper\n\nURL Source: {KEEPER}\n\nMarkdown Content:\nHe kept it.\n\nOld."
HISTORY = [
    call("search", FIRST, query="games", num=2),
    call(
        "open",
        f"Title: The keeper\n\nURL Source: {KEEPER}\n\nMarkdown Content:\nHe kept it.\n\nOld.",
        id=KEEPER,
    ),
    call("find", "[Match 1]\nkept it", pattern="kept"),
    call("find", "", pattern="lost"),
    call("search", SECOND, query="games again"),
    call("find", "[Match 1]\nkept it", pattern="kept"),
    call("search", "No results found.", query="nothing"),
]


def test_content_is_laid_out_as_the_reference_does():
    pages = reference.cited_pages(HISTORY, [KEEPER, "https://never.seen", GAMES, HALL])
    assert pages == {
        KEEPER: f"URL Source: {KEEPER}\nTitle: The keeper\n\n"
        "Snippet:\nA hall.\nWith a second line.\n\n"
        "Content:\nHe kept it.\n\nOld.\n\n"
        'Search Result of Keyword "kept":\n[Match 1]\nkept it\n\n',
        GAMES: f"URL Source: {GAMES}\nTitle: Games of 1902\nPublished Time: May 1, 2019\n\n"
        "Snippet:\nThe games were held in Oss.\n\nSnippet:\nHeld twice.\n\n",
        HALL: f"URL Source: {HALL}\nTitle: Hall\n\n",  # both snippets stood under earlier pages
    }
    assert reference.context(pages.values()) == (
        f"[Webpage 1]\n{pages[KEEPER]}[Webpage 2]\n{pages[GAMES]}[Webpage 3]\n{pages[HALL]}"
    )


def test_twenty_pages_with_content_count():
    outputs = "\n\n".join(
        f"[{i}] Title: t\n[{i}] URL Source: {A}/{2 * i}\n[{i}] Description: s{i}" for i in range(30)
    )
    cited = [f"{A}/{i}" for i in range(60)]
    assert list(reference.cited_pages([call("search", outputs)], cited)) == cited[:40:2]


def test_another_spelling_finds_no_page():
    assert reference.cited_pages(HISTORY, [GAMES + "/", GAMES.replace("https", "http"), GAMES + "#x"]) == {}


def test_strict_scores_need_the_strict_spelling():
    two = question([{0}, {0, 1}])
    calls = (call("open", f"URL Source: {A}/1\nMarkdown Content: x", id=0),)

    def rubric(response, citations):
        judge = ScriptedJudge({response: (True, {"E0": "a", "E1": "b"}, None)})
        judge.stated[response] = judge.script[response]  # the strict reading keeps the links

        async def support(question, names, indices, pages):
            return judge._say("support", response, [True for _ in indices])

        judge.support = support
        t = trajectory(response)
        object.__setattr__(t.turns[0], "calls", calls)
        return run(carr.score_trajectory(two, t, judge, citations=citations)).rubric

    assert rubric(f"x [[1]({A}/1)]", "strict_reference") == 1.0
    assert rubric(f"x [1]({A}/1).", "strict_reference") == 0.0
    assert rubric(f"x [[1]({A}/1)]", "tolerant") == 0.0  # nothing in `seen`: only texts were recorded


@settings(max_examples=100, deadline=None)
@given(st.text("[]()https:/a.com 0\n,#R"), st.lists(st.text("[0] Title: URL Source Description:\n ")))
def test_any_text_is_read(response, outputs):
    calls = [call("search", text) for text in outputs] + [call("open", text) for text in outputs]
    assert len(reference.cited_pages(calls, reference.cited_urls(response))) <= 20
