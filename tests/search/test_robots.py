"""What robots.txt means: the examples of RFC 9309, and that nothing hostile in it costs much."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.search.robots import Rule, allowed, rules_for

EXAMPLE = """
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html   # this one
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

Sitemap: https://a.test/map
User-Agent: quxbot
"""


@pytest.mark.parametrize(
    ("agent", "path", "may"),
    [  # RFC 9309, section 5.1
        ("foobot", "/example/page.html", True),
        ("foobot", "/example/allowed.gif", True),
        ("foobot", "/publications/", False),
        ("FooBot/2.1 (+https://a.test)", "/", False),
        ("barbot", "/example/page.html", False),
        ("bazbot", "/example/page.html?a", False),
        ("bazbot", "/a.gif", True),
        ("quxbot", "/example/", True),
        ("another", "/a/b.gif", False),
        ("another", "/a/b.gif?c", True),
        ("another", "/publications/", True),
        ("another", "/example/x", False),
        ("another", "/example", True),
    ],
)
def test_the_example_of_the_standard(agent, path, may):
    assert allowed(rules_for(agent, EXAMPLE), path) is may


@pytest.mark.parametrize(
    ("lines", "path", "may"),
    [
        ("Disallow: /\nAllow: /a", "/a/b", True),  # the longest
        ("Allow: /a/\nDisallow: /a", "/a/b", True),
        ("Disallow: /a\nAllow: /a", "/ab", True),  # of two as long the one that allows
        ("Disallow:", "/a", True),
        ("Disallow: /a*b*c", "/axxbxxc/d", False),
        ("Disallow: /a*b*c", "/axxcxxb", True),
        ("Disallow: /*?", "/a?b", False),
        ("Disallow: /a$", "/a", False),
        ("Disallow: /a$", "/ab", True),
        ("Disallow: /*a$", "/ba/a", False),
        ("Disallow: /a*a$", "/a", True),
        ("Disallow: /caf%c3%a9", "/caf\u00e9/x", False),
        ("Disallow: /caf\u00e9", "/caf%C3%A9/x", False),
        ("Disallow: /a%2Fb", "/a/b", True),
        ("disallow : /x\nCrawl-delay: 9", "/x", False),
        ("Disallow: /x\r\nnonsense\r\nDisallow: /y", "/y", False),
    ],
)
def test_rules(lines, path, may):
    assert allowed(rules_for("me", f"User-agent: *\n{lines}"), path) is may


def test_groups_of_one_robot_are_one():
    text = "User-agent: me\nDisallow: /a\n\nUser-agent: *\nDisallow: /\n\nuser-agent: ME\nDisallow: /b"
    assert rules_for("me", text) == (Rule("/a", False), Rule("/b", False))


@settings(max_examples=200, deadline=None)
@given(st.text("/a*$b", max_size=8), st.text("/ab", max_size=10))
def test_a_rule_covers_what_its_pattern_matches(rule, path):
    import re

    end = "" if rule.endswith("$") else ".*"
    pattern = "".join(".*" if c == "*" else re.escape(c) for c in rule.removesuffix("$")) + end
    assert Rule(rule, False).covers(path) == bool(re.fullmatch(pattern, path))


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.text(max_size=200), st.lists(st.sampled_from(EXAMPLE.split("\n"))).map("\n".join)), st.text()
)
def test_anything_can_be_read(text, path):
    assert allowed(rules_for("me", text), path) in (True, False)


def test_hostile_rules_cost_little():
    rules = rules_for(
        "me", "User-agent: *\n" + "Disallow: /" + "*a" * 100_000 + "*b$\n" + "Disallow: /x\n" * 20_000
    )
    assert allowed(rules, "/" + "a" * 2_000) is True
