"""When two spellings of an address mean one page, and what a policy means by one."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carr_jax import addresses
from carr_jax.addresses import asked_address, asked_keys, canonical_url

A = "https://a.com"
WIKI = "https://en.wikipedia.org/wiki/Zameen_(2003_film)"


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
        ("https://www.a.com/x", "http://a.com/x/"),
        ("https://WWW.a.com:443/", "https://a.com"),
        ("https://a.com/x#:~:text=one", "https://r.jina.ai/http://a.com/x"),
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
        ("https://www.com/", "https://com/"),
        ("https://www.a.com/", "https://en.a.com/"),
    ],
)
def test_two_pages_stay_two(one, other):
    assert canonical_url(one) != canonical_url(other)


hosts = st.sampled_from(
    [
        "a.com",
        "www.a.com",
        "www.r.jina.ai",
        "www.www.com",
        "A.com",
        "a.com:80",
        "r.jina.ai",
        "a-b.co.uk",
        "a",
        "1.2.3.4",
        "a..com",
        "-a.com",
    ]
)
paths = st.lists(
    st.sampled_from(["%2F", "%41", "%c3%a9", "%zz", "https://b.com", "é", *"ab/.~()!$'*,;:@&=+-_%1?# "]),
    max_size=8,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["http://", "https://"]), hosts, paths)
def test_the_quick_way_to_a_key_is_the_long_way(scheme, host, path):
    url = f"{scheme}{host}/{path}"
    assert canonical_url(url) == addresses._key(url)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["http://", "HTTPS://", ""]), hosts, paths), min_size=2, max_size=2))
def test_other_hosts_have_other_keys(pair):
    one, other = ("".join(parts) for parts in pair)
    if None not in (addresses.host_of(one), addresses.host_of(other)) and addresses.host_of(
        one
    ) != addresses.host_of(other):
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


def test_long_addresses_have_a_key_at_once():
    """Each would take minutes at quadratic cost."""
    n = 60_000
    assert canonical_url("view-source:" * n + A) == A
    assert canonical_url(A + "/%41" * n) == A + "/" + "/".join("A" * n)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (" https://r.jina.ai/view-source:https://a.test/x ", "https://a.test/x"),
        ("a.test/x", "https://a.test/x"),
        ("3", "3"),
        ("https://r.jina.ai/file:///etc/passwd", "file:///etc/passwd"),
        ("mailto:a@b.test", "mailto:a@b.test"),
    ],
)
def test_what_a_policy_means_by_an_address(written, meant):
    assert asked_address(written) == meant


@pytest.mark.parametrize(
    "asked", ["www.a.com/x", "a.com/x/", "http://a.com/x#y", "https://r.jina.ai/https://a.com/x"]
)
def test_a_page_is_found_under_one_of_the_keys_of_what_is_asked(asked):
    assert canonical_url("https://a.com/x") in asked_keys(asked)


@pytest.mark.parametrize("name", ["3", "doc.12", "doc#1", "Q42"])
def test_a_name_that_is_no_address_is_its_own_key(name):
    assert canonical_url(name) == name and name in asked_keys(name)
