"""What is withheld from who answers a question: vectors by hand, and the built-in world as evidence."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.search.hygiene import HygieneRules, on_hosts, quotes, retold_share, withheld, words
from carr_jax.search.world import WorldConfig, build_world

FOURTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
QUESTION = (
    "Which violinist, born in a harbour town known for amber, taught the composer whose opera about a blind "
    "lighthouse keeper opened the theatre that burned down in 1911?"
)


def test_words_are_ascii_runs_and_single_ideographs():
    assert words("It's a_b, É 北京x2!") == ["it", "s", "a_b", "北", "京", "x2"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "say: One, two three FOUR five six seven eight nine ten - eleven twelve thirteen!",
            True,
        ),  # 13 in a row
        ("two three four five six seven eight nine ten eleven twelve thirteen fourteen.", True),
        ("one two three four five six seven eight nine ten eleven twelve and thirteen fourteen", False),  # 12
        ("", False),
        (FOURTEEN[:-8], True),
    ],
)
def test_thirteen_words_in_a_row(text, found):
    assert quotes(FOURTEEN, text) is found


def test_questions_of_fewer_words_are_substrings_and_nothing_is_quoted_nowhere():
    assert quotes("Who built it?", "He asked who built it, and left.")
    assert not quotes("Who built it?", "Who had built it")
    assert quotes("cat", "concatenate")  # RC-20: the reference's rule, as it is
    assert not quotes("", "anything") and not quotes("?!", "anything")
    assert quotes("东京的首都在哪里", "问题：东京的首都在哪里？")
    twelve, thirteen = "北京上海天津重庆河北山西", "北京上海天津重庆河北山西辽"
    assert quotes(twelve, "x" + twelve) and quotes(thirteen, "x " + thirteen)
    assert not quotes(thirteen, "北京上海天津重庆河北山西吉林")


@given(
    st.lists(st.sampled_from("a b c d".split()), max_size=40),
    st.lists(st.sampled_from("a b c d".split()), max_size=60),
)
@settings(max_examples=300, deadline=None)
def test_quotes_is_what_its_definition_says(asked, said):
    def grams(tokens):
        return {" ".join(tokens[i : i + 13]) for i in range(len(tokens) - 12)}

    if len(asked) >= 13:
        expected = bool(grams(asked) & grams(said))
    else:
        expected = bool(asked) and " ".join(asked) in " ".join(said)
    assert quotes(" ".join(asked), " ".join(said)) is expected


def test_a_question_in_other_words_is_found_and_pages_about_its_parts_are_not():
    retold = (
        "He had to find the violinist who was born in an amber harbour town, and who was the teacher, no: "
        "taught the composer. The opera of that composer, on a lighthouse keeper who was blind, opened a "
        "theatre; it burned down in 1911."
    )
    assert not quotes(QUESTION, retold) and retold_share(QUESTION, retold) >= 0.75
    assert withheld(QUESTION, "https://a.test/", "x " * 900 + retold, HygieneRules()) == "retold"
    assert withheld(QUESTION, "https://a.test/", retold, HygieneRules(share=0.0)) == ""
    evidence = (
        "Nida is a harbour town known for amber, where the violinist Ona Rau was born. She taught for years."
    )
    assert retold_share(QUESTION, evidence) < 0.5
    assert withheld(QUESTION, "https://a.test/", evidence, HygieneRules()) == ""
    apart = " ".join(word + " x" * 60 for word in QUESTION.split())  # all its words, far from each other
    assert retold_share(QUESTION, apart) < 0.3


def test_hosts_that_keep_data_sets():
    hosts = ("huggingface.co", "kaggle.com")
    assert on_hosts("https://huggingface.co/datasets/x", hosts) and on_hosts("http://www.KAGGLE.com./a", hosts)
    assert not on_hosts("https://nothuggingface.co/", hosts) and not on_hosts("huggingface.co", hosts)
    assert withheld("", "https://huggingface.co/x", "", HygieneRules(hosts=hosts)) == "host"
    assert withheld(QUESTION, f"https://a.test/?q={QUESTION.replace(' ', '+')}", "", HygieneRules()) == "quoted"


@pytest.mark.parametrize("config", [WorldConfig(), WorldConfig(hops=(3, 4), obfuscate=1.0)])
def test_no_page_of_the_world_is_withheld_from_its_own_questions(config):
    """Evidence must not be taken for a leak; the rates on other data stand in docs/design.md."""
    world = build_world(config)
    by_url = {page.url: page for page in world.pages}
    for question in world.questions("train", 128, seed=0):
        for page in (by_url[url] for url in question.gold_urls):
            assert withheld(question.question, page.url, f"{page.title} {page.text}", HygieneRules()) == ""


def test_most_questions_with_some_words_lost_and_parts_exchanged_are_found():
    """The longer questions of the world, a tenth of their words dropped, stretches of five exchanged."""
    rng, found, all_of_them = random.Random(0), 0, 0
    for question in build_world(WorldConfig(hops=(3, 4), obfuscate=1.0)).questions("train", 512, seed=0):
        kept = [word for word in question.question.split() if rng.random() > 0.1]
        parts = [kept[i : i + 5] for i in range(0, len(kept), 5)]
        retold = " ".join(
            word for i in range(0, len(parts), 2) for part in parts[i : i + 2][::-1] for word in part
        )
        if retold_share(question.question, question.question):
            all_of_them += 1
            found += (
                retold_share(question.question, f"{'other words ' * 50}{retold}. {'more of it ' * 50}") >= 0.75
            )
    assert all_of_them >= 20 and found / all_of_them > 0.9
