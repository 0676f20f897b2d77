import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scripted_judge import trajectory

from carr_jax.records import Seen
from carr_jax.rewards.citations import canonical_url, cited_urls, seen_text, without_links, without_references

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


def test_at_most_twenty_pages_in_order():
    links = [f"https://a.com/{i}" for i in range(30)]
    assert cited_urls(" ".join(f"[[{i}]({u})][[{i}]({u}/)]" for i, u in enumerate(links))) == links[:20]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"x [1]({A})\n## References\n1. {B}\n", [A]),
        (f"x\n\n##  references:\n{B}\n## Exact Answer\ny [1]({A})", [A]),
        (f"## **References**\n{B}\n### Web\n{B}/2\n# Answer\n{A}", [A]),
        (f"## References\n{B}\n## Explanation\n{A}\n## References\n", [A]),
        (f"As the ## References say, {A}", [A]),
        (f"## References and notes\n{A}", [A]),
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.com", "http://A.COM:80/"),
        ("https://a.com:443/x/", "https://a.com/x#part"),
        ("https://a.com/x?", "view-source:https://r.jina.ai/https://a.com/x"),
        (WIKI, WIKI.replace("(", "%28").replace(")", "%29")),
        ("https://a.example/p%28x%29?t=a%2Fb", "https://a.example/p(x)?t=a/b"),
        ("https://a.com/caf%c3%a9", "https://a.com/café"),
        ("https://a.com/%7Eme/a%2fb", "https://a.com/~me/a%2Fb"),
        ("https://a.com/x y", "https://a.com/x%20y"),
    ],
)
def test_two_spellings_of_one_page(one, other):
    assert canonical_url(one) == canonical_url(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://arxiv.org/x", "https://arxiv.org.evil.example/x"),
        ("https://arxiv.org/x", "https://arxiv.org@evil.example/x"),
        ("https://a.com/x", "https://a.com/X"),
        ("https://a.com/a%2Fb", "https://a.com/a/b"),
        ("https://a.com/x?a=1%26b=2", "https://a.com/x?a=1&b=2"),
        ("https://a.com:8080/", "https://a.com/"),
        ("https://r.jina.ai/", "https://a.com/"),
        ("https://a.com/%2541", "https://a.com/%41"),
    ],
)
def test_two_pages_stay_two(one, other):
    assert canonical_url(one) != canonical_url(other)


pieces = st.sampled_from(
    [
        "http://",
        "https://",
        "view-source:",
        "r.jina.ai",
        "/",
        "A.com",
        ":80",
        ":",
        "@",
        "%28",
        "%2f",
        "%zz",
        "%25",
    ]
    + ["%FF", "(", ")", "?", "&", "=", "#", "[", "]", "é", "İ", "\ud800", ".", "..", "a"]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=30), st.lists(pieces, max_size=10).map("".join)))
@example("https://r.jina.ai:443/https://a.com")
@example("https://a.com:99999/")
@example("https://İ.com/")
def test_canonical_is_idempotent_and_total(url):
    assert canonical_url(canonical_url(url)) == canonical_url(url)


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
    ):
        assert len(cited_urls(text)) <= 20
        assert len(without_links(text)) <= len(text)
    assert canonical_url("view-source:" * n + A) == A
    assert canonical_url(A + "/%41" * n) == A + "/" + "/".join("A" * n)


def test_seen_text_joins_the_pieces_of_a_page():
    t = trajectory(
        seen=[(A + "/x", "one"), (B, "two"), ("http://a.com/x/#f", "three"), (A + "/x", "one"), (A, " ")]
    )
    assert seen_text(t, [A + "/x#g", "https://never.seen", B, A]) == {A + "/x#g": "one\n\nthree", B: "two"}


def test_the_title_of_a_page_was_seen_too():
    t = trajectory()
    call = t.turns[0].calls[0]
    object.__setattr__(
        call.result, "seen", (Seen(A, "Title", "snippet", "text"), Seen(A, "Title", "page", "text"))
    )
    assert seen_text(t, [A]) == {A: "Title\n\ntext"}
