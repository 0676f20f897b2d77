import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_judge import trajectory

from carr_jax.addresses import canonical_url
from carr_jax.records import Seen
from carr_jax.rewards.citations import cited_urls, seen_text, without_links, without_references

A, B = "https://a.com", "https://b.com"
WIKI = "https://en.wikipedia.org/wiki/Zameen_(2003_film)"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        # the inputs of the dossier's table, read tolerantly
        (f"[[4]({A})]", [A]),
        (f"[[4]({A}), [5]({B})]", [A, B]),
        (f"[[4]({A})][[9]({B})]", [A, B]),
        (f"[4]({A}).", [A]),
        (f"[4]({A}) and more", [A]),
        (f"[4]({A}) foo [[5]({B})]", [A, B]),
        ("[[4](https://w.org/x_(y))]", ["https://w.org/x_(y)"]),
        ("[[4](https://w.org/a_(b),c)]", ["https://w.org/a_(b),c"]),
        (f"[[Wiki]({A})]", [A]),
        ("【4】", []),
        (f'[1]({A} "a title")', [A]),
        (f"[[1]({A})，[2]({B})]", [A, B]),
        # what people met
        (
            "[x](https://en.wikipedia.org/wiki/Set_(mathematics))",
            ["https://en.wikipedia.org/wiki/Set_(mathematics)"],
        ),
        ("[x](https://t.example/A_(b)_c.html)", ["https://t.example/A_(b)_c.html"]),
        ("(see https://a.example/p)", ["https://a.example/p"]),
        (f"see {WIKI}.", [WIKI]),
        (f"(see {WIKI})", [WIKI]),
        ("https://a.example/R（shared from", ["https://a.example/R"]),
        ("https://a.example/A《x》https://a.example/B", ["https://a.example/A", "https://a.example/B"]),
        ("读https://a.example/A。好", ["https://a.example/A"]),
        ("[1](https://zh.wikipedia.org/wiki/数学（学科）)", ["https://zh.wikipedia.org/wiki/数学（学科）"]),
        ("[1](https://a.example/p%28x%29?t=a%2Fb)", ["https://a.example/p%28x%29?t=a%2Fb"]),
        # other spellings
        (f"<{A}/x>", [f"{A}/x"]),
        (f"[[1](<{A}/x y>)]", [f"{A}/x y"]),
        (f"[1](\n{A}\n)", [A]),
        (f"[[1](view-source:{A})]", [A]),
        (f"**{A}/x**, `{B}`", [f"{A}/x", B]),
        (f"[1]: {A}/x", [f"{A}/x"]),
        (f"| {A} |{B}|", [A, B]),
        (f"{A},{B};{A}/c", [A, B, f"{A}/c"]),
        ("[1](https://a.com/Set\\_\\(x\\))", ["https://a.com/Set_(x)"]),
        ("https://web.example/2020/https://a.com/x", ["https://web.example/2020/https://a.com/x"]),
        ("[1](https://a.com/x?p=1&amp;q=2)", ["https://a.com/x?p=1&q=2"]),
        ("HTTPS://A.com/x", ["HTTPS://A.com/x"]),
        ("ftp://a.com www.a.com http:// https://[ and [[1](u)]", []),
        # one page, one citation
        (f"[[1]({A}/x)] [[2]({A}/x#part)] [[3](http://A.com:80/x/)]", [f"{A}/x"]),
    ],
)
def test_citation_table(text, urls):
    assert cited_urls(text) == urls


def test_twenty_pages_that_were_seen_count_and_the_others_do_not():
    links = [f"https://a.com/{i}" for i in range(60)]
    cited = cited_urls(" ".join(f"[[{i}]({u})][[{i}]({u}/)]" for i, u in enumerate(links)))
    assert cited == links
    t = trajectory(seen=[(u, f"page {i}") for i, u in enumerate(links) if i % 2])
    assert list(seen_text(t.seen, cited)) == links[1:41:2]


LIST = f"\n\n## References\n[1] Title one. {A}/1\n[2]: {A}/2 'two'\n"


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        (f"As [2] says.{LIST}", [f"{A}/2"]),
        (f"Both [1, 2] say.{LIST}", [f"{A}/1", f"{A}/2"]),
        (f"Both [2][1] say, and [[1]].{LIST}", [f"{A}/2", f"{A}/1"]),
        (f"In order [2], {B}, [1].{LIST}", [f"{A}/2", B, f"{A}/1"]),
        (f"All [1-2], [1–2], [^1].{LIST}", [f"{A}/1", f"{A}/2"]),
        (f"两个【1】、［2］，{LIST}", [f"{A}/1", f"{A}/2"]),
        (f"Neither [3] nor [0-999] nor [1a] nor 1 nor (2).{LIST}", []),
        (f"No marker.{LIST}", []),
        (f"Not a marker: [1](two).{LIST}", []),
        (f"## References\n1. [One]({A})\n2) <{B}>\n## Explanation\nBoth [1], [2].", [A, B]),
        (
            f"[1] [2] [3]\n## References\n- [[1]({A})]\n* [2]({B})\n\n【3】 two\n  {A}/c",
            [A, B, f"{A}/c"],
        ),
        (f"x [1]\n## References\n[1] one {A} and {B}\n[1] again {B}", [A]),
        (f"x [1]\n## References\n[1] nothing\n[2] {B}", []),
        (f"x [12]\n## References\n[^12]: {B}", [B]),
        (f"## Exact Answer\nx [2]{LIST}", [f"{A}/2"]),
    ],
)
def test_a_number_in_the_prose_cites_what_the_references_give_it(text, urls):
    assert cited_urls(text) == urls


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"x [1]({A})\n## References\n1. {B}\n", [A]),
        (f"x\n\n##  references:\n{B}\n## Exact Answer\ny [1]({A})", [A]),
        (f"## **References**\n{B}\n### Web\n{B}/2\n# Answer\n{A}", [A]),
        (f"## References\n{B}\n## Explanation\n{A}\n## References\n", [A]),
        (f"As the ## References say, {A}", [A]),
        (f"## References and notes\n{A}", [A]),
        (f"x\n\n**References**\n{A}\n## Note\n{B}", [B]),
        (f"x\n\n**References:**\n{A}\n### Web\n{B}", [B]),
        (f"x\n\nReferences:\n{A}", []),
        (f"x\n\nReferences\n----------\n{A}", []),
        (f"x\n\n## Sources\n{A}\n## 参考文献\n{B}", []),
        (f"References\n{A}", [A]),  # a word on a line of its own is no heading
        (f"The **references** are {A}", [A]),
    ],
)
def test_references_do_not_count_but_an_answer_behind_them_does(text, kept):
    assert cited_urls(text) == kept


def test_text_behind_references_stays():
    text = "a\n## References\nb\n## Exact Answer\nc"
    assert without_references(text) == "a\n## Exact Answer\nc"
    assert without_references("plain") == "plain"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"Kalkar [[1]({A}/x_(y))]", "Kalkar []"),
        (f"[Kalkar]({A}) or [Bonn]({B} 't')", "Kalkar or Bonn"),
        (f"Kalkar [1]({A} or Paris", "Kalkar "),
        (f"Kalkar [1]({A}\nor Paris", "Kalkar \nor Paris"),
        ("Kalkar [1](or Paris)", "Kalkar [1](or Paris)"),
        ("no link", "no link"),
    ],
)
def test_links_are_replaced_by_their_label(text, plain):
    assert without_links(text) == plain


@settings(max_examples=200, deadline=None)
@given(st.text("[](<>)https://a.b \n#\\`，", max_size=80))
def test_citations_are_distinct_pages_that_stand_in_the_text(text):
    urls = cited_urls(text)
    assert len({canonical_url(u) for u in urls}) == len(urls)
    assert all(u.casefold().startswith(("http://", "https://")) for u in urls)
    assert all(u in text.replace("\\", "") or "\\" in text for u in urls)


def test_big_hostile_inputs_finish():
    """Each would take minutes at quadratic cost."""
    n = 60_000
    for text in (
        "[1](https://" * n,
        "[a](https://a.com/(" * n,
        "#" * n + "\n" + "# " * n,
        "https://a)" * n,
        "<https://" * n,
        "[1]" * n + "\n## References\n" + "[1] " * n,
        "[1,1" * n + "\n## References\n[1] https://a.com",
        "\n".join(["## References"] * n),
        "\n".join(["[1] https://a.com [1]"] * n),
        "**References" * n,
    ):
        assert len(seen_text([], cited_urls(text))) == 0
        assert len(without_links(text)) <= len(text)


def test_seen_text_joins_the_pieces_of_a_page():
    t = trajectory(
        seen=[(A + "/x", "one"), (B, "two"), ("http://a.com/x/#f", "three"), (A + "/x", "one"), (A, " ")]
    )
    assert seen_text(t.seen, [A + "/x#g", "https://never.seen", B, A]) == {A + "/x#g": "one\n\nthree", B: "two"}


def test_the_title_of_a_page_was_seen_too():
    t = trajectory()
    call = t.turns[0].calls[0]
    object.__setattr__(
        call.result, "seen", (Seen(A, "Title", "snippet", "text"), Seen(A, "Title", "page", "text"))
    )
    assert seen_text(t.seen, [A]) == {A: "Title\n\ntext"}


def test_an_excerpt_of_an_opened_page_is_not_repeated():
    seen = [
        Seen(A, "Title", "snippet", "the middle"),
        Seen(A, "Title", "snippet", "not on the page"),
        Seen(A, "Title", "page", "start the middle end"),
        Seen(A, "Title", "match", "middle end"),
        Seen(B, "Title", "snippet", "the middle"),
    ]
    assert seen_text(seen, [A, B]) == {
        A: "Title\n\nnot on the page\n\nstart the middle end",
        B: "Title\n\nthe middle",  # text never moves from one page to another
    }


def test_a_redirected_page_is_found_by_both_addresses():
    seen = [Seen(f"{A}/new", "", "page", "text", f"{A}/old"), Seen(f"{A}/old", "", "snippet", "short")]
    assert seen_text(seen, [f"{A}/old"]) == {f"{A}/old": "text\n\nshort"}
    assert seen_text(seen, [f"{A}/new/"]) == {f"{A}/new/": "text"}
