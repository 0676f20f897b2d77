import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_judge import answer

from carr_jax.records import Question
from carr_jax.rewards import matching


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("  The  Łódź–Ålesund Line! ", "the lodz alesund line"),
        ("J.R.R. Tolkien’s", "j r r tolkien s"),
        ("2,913,123 people", "2913123 people"),
        ("1,2,3 and 12,1931", "1 2 3 and 12 1931"),
        ("−5.50 or -$3", "-5.50 or -3"),
        ("1914-1918, 1914–1918, 1928 -1997", "1914 1918 1914 1918 1928 1997"),
        ("F-16 and 3rd, 5km", "f 16 and 3rd 5km"),
        ("92% & ５", "92 percent and 5"),
        ("北京2008年", "北 京 2008 年"),
        ("서울", "서울"),
        ("snake_case", "snake case"),
        ("?!", ""),
    ],
)
def test_folding(text, folded):
    assert matching.fold(text) == folded


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_folding_is_idempotent_on_ascii_words(text):
    folded = matching.fold(text)
    assert folded == " ".join(folded.split())
    if folded.isascii() and "-" not in folded:
        assert matching.fold(folded) == folded


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("12 May 1931", (1931, 5, 12)),
        ("May 12, 1931", (1931, 5, 12)),
        ("1931-05-12", (1931, 5, 12)),
        ("on the", None),
        ("the 12th of May, 1931", None),
        ("12th of Sept. 1931", (1931, 9, 12)),
        ("April 1793", (1793, 4, 0)),
        ("in 513", (513, 0, 0)),
        ("12 Mayor 1931", None),
        ("32 May 1931", None),
        ("05/12/1931", None),  # either order of day and month
    ],
)
def test_dates(text, date):
    assert matching.parse_date(text) == date


def question(gold, aliases=(), kind="entity", text="Who was it?"):
    return Question("q", text, gold, tuple(aliases), kind)


HOW_MANY = "How many times did it rain?"


@pytest.mark.parametrize(
    ("gold", "kind", "text", "extracted", "same"),
    [
        ("Kalkar", "entity", "?", "**Kalkar**.", True),
        ("Kalkar", "entity", "?", "kálkar", True),
        ("Beatles", "entity", "?", "The Beatles", True),
        ("The Who", "entity", "?", "Who", True),
        ("Kalkar", "entity", "?", "Kalkar or Bonn", False),
        ("Kalkar", "entity", "?", "Kalkar\nBonn", False),
        ("Kalkar", "entity", "?", "not Kalkar", False),
        ("Kalkar", "entity", "?", "Kalk", False),
        ("Kalkar", "entity", "?", "", False),
        ("Kalkar", "entity", "?", "...", False),
        ("?!", "entity", "?", "?!", False),
        ("12 May 1931", "date", "?", "May 12, 1931", True),
        ("12 May 1931", "date", "?", "1931-05-12", True),
        ("12 May 1931", "date", "?", "12 May 1932", False),
        ("12 May 1931", "date", "?", "1931", False),
        ("1931", "date", "?", "12 May 1931", False),
        ("1988", "date", "?", "in 1988", True),
        ("-5", "number", "?", "5", False),
        ("-5", "number", "?", "−5", True),
        ("5", "number", "?", "-5", False),
        ("2,913,123", "number", "?", "2913123", True),
        ("2,913,123", "number", "?", "2.913123", False),
        ("5.1", "number", "?", "5.10", True),
        ("92 percent", "number", "?", "92%", True),
        ("92 percent", "number", "What percent of it?", "92", True),
        ("92 percent", "number", "?", "92", False),
        ("22", "number", HOW_MANY, "22 times", True),
        ("22", "number", HOW_MANY, "22 million times", False),
        ("22", "number", HOW_MANY, "22 percent", False),
        ("1,500,000", "number", "?", "1.5 million", True),
        ("10", "number", "?", "ten", True),
        ("22", "number", HOW_MANY, "about 22", False),
        ("yes", "yesno", "?", "Yes.", True),
        ("yes", "yesno", "?", "no", False),
        ("no", "yesno", "?", "Yes and no", False),
    ],
)
def test_answer_table(gold, kind, text, extracted, same):
    assert matching.same_answer(extracted, question(gold, kind=kind, text=text)) is same


def test_aliases_count_and_none_does_not():
    asked = question("South Carolina", ["USC", "SC"])
    assert matching.same_answer("sc", asked)
    assert not matching.same_answer(None, asked)


@pytest.mark.parametrize(
    ("text", "names", "kind", "found"),
    [
        ("He went to Kalkar's gate.", ["Bonn", "Kalkar"], "entity", "Kalkar"),
        ("concatenate", ["cat"], "entity", None),
        ("born (12th of May, 1931)", ["1931-05-12"], "entity", "1931-05-12"),
        ("born May 12 1931", ["12 May 1931"], "date", "12 May 1931"),
        ("born 2 May 1931", ["12 May 1931"], "date", None),
        ("born 12 May 1931", ["2 May 1931"], "date", None),
        ("in 1931", ["12 May 1931"], "date", None),
        ("it was -5 degrees", ["5"], "number", None),
        ("about 2913123 people", ["2,913,123"], "number", "2,913,123"),
        ("they who sing", ["The Who"], "entity", None),
        ("in Danish Girl", ["The Danish Girl"], "entity", "The Danish Girl"),
        ("I know no one", ["no"], "yesno", None),
        ("No, they differ", ["no"], "yesno", "no"),
        ("anything", ["", "!?"], "entity", None),
    ],
)
def test_mentions(text, names, kind, found):
    assert matching.mentions(text, names, kind) == found


@pytest.mark.parametrize(
    ("response", "found"),
    [
        (answer("Kalkar"), "Kalkar"),
        ("## exact answer:\nKalkar", "Kalkar"),
        ("## References\n[1] x\n## Exact Answer\nKalkar\n", "Kalkar"),
        ("## Exact Answer\nKalkar [[1](https://a.com/x_(y))]\n## References", "Kalkar []"),
        ("The answer is Kalkar.", None),
        ("Exact Answer\nKalkar", None),
        ("## Exact Answer\n\n## References\nKalkar", None),
        ("I write ## Exact Answer\nKalkar", None),
        ("## Exact Answer\nKalkar\n## Exact Answer\nthe kalkar.", "the kalkar."),
        ("## Exact Answer\nKalkar\n## Note\n## Exact Answer\nBonn", "Kalkar\nBonn"),
    ],
)
def test_exact_answer_section(response, found):
    assert matching.exact_answer(response) == found


def test_two_different_exact_answers_never_match():
    both = "## Exact Answer\nKalkar\n## Exact Answer\nBonn"
    assert not any(
        matching.same_answer(matching.exact_answer(both), question(gold)) for gold in ("Kalkar", "Bonn")
    )


def test_numbers_are_decimal_digits_only():
    assert matching.parse_number("nan1") is None
    assert matching.parse_number("1e5") is None
    assert matching.compare("snan1", "5") is None
