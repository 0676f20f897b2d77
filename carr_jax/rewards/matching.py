"""Comparing names, dates and numbers as text: what the deterministic judge knows of equality.

`fold` turns text into words without case, accents and punctuation; everything else compares folded text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

from carr_jax.records import Question
from carr_jax.rewards.citations import sections, without_links, without_markers

_SPELLED = str.maketrans(
    {
        "\u2212": "-",  # minus sign
        "%": " percent ",
        "&": " and ",
        "ø": "o",
        "Ø": "O",
        "ł": "l",
        "Ł": "L",
        "đ": "d",
        "Đ": "D",
        "ı": "i",
        "æ": "ae",
        "Æ": "Ae",
        "œ": "oe",
        "Œ": "Oe",
    }
)
_ACCENTS = re.compile(r"[\u0300-\u036f]")
_IDEOGRAPHS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
# A number keeps its sign and decimals, not its thousands separators (AM-02).  A hyphen is a sign only where no
# word or number stands before it: "1914-1918" is a range.
_TOKEN = re.compile(
    r"(?:(?<![\w)])(?<!\d )-[$€£]?)?\d++(?:,\d{3}(?!\d))*+(?:\.\d++)?+(?![^\W_" + _IDEOGRAPHS + r"])"
    r"|[" + _IDEOGRAPHS + r"]"
    r"|[^\W_" + _IDEOGRAPHS + r"]+"
)
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_MONTH_NUMBER = {name[:n]: i for i, name in enumerate(_MONTHS, 1) for n in (3, len(name))} | {"sept": 9}
_ORDINAL = r"(?:st|nd|rd|th)?"
_DATES = (
    re.compile(rf"(?:on )?(?P<d>\d{{1,2}}){_ORDINAL} (?:of )?(?P<m>[a-z]+) (?P<y>\d{{1,4}})"),
    re.compile(rf"(?:on )?(?P<m>[a-z]+) (?P<d>\d{{1,2}}){_ORDINAL} (?P<y>\d{{1,4}})"),
    re.compile(r"(?P<y>\d{4}) (?P<m>\d{2}) (?P<d>\d{2})"),
    re.compile(r"(?:in )?(?P<m>[a-z]+) (?:of )?(?P<y>\d{3,4})"),
    re.compile(r"(?:in )?(?P<y>\d{3,4})"),
)
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
_SCALE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NUMBER_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


@functools.lru_cache(maxsize=512)
def fold(text: str) -> str:
    """`text` as lower-case words with single spaces, without accents and punctuation; idempotent on words."""
    text = unicodedata.normalize("NFKD", text.translate(_SPELLED)).casefold()
    text = unicodedata.normalize("NFKC", _ACCENTS.sub("", text))
    tokens = (match[0] for match in _TOKEN.finditer(text))
    return " ".join(re.sub(r"[,$€£]", "", token) if token[-1].isdigit() else token for token in tokens)


def fold_name(name: str) -> str:
    """`fold` without one leading article."""
    folded = fold(name)
    article, _, rest = folded.partition(" ")
    return rest if rest and article in ("the", "a", "an") else folded


# -------------------------------------------------------------------------------------------- dates and numbers


def parse_date(text: str) -> tuple[int, int, int] | None:
    """(year, month, day) of a text that is nothing but a date, 0 for what it leaves open; else None."""
    folded = fold(text)
    for pattern in _DATES:
        if not (match := pattern.fullmatch(folded)):
            continue
        part = match.groupdict()
        month = part.get("m") or "0"
        month = int(month) if month.isdigit() else _MONTH_NUMBER.get(month, 13)
        day = int(part.get("d") or 0)
        if month <= 12 and day <= 31:
            return int(part["y"]), month, day
    return None


def parse_number(text: str) -> tuple[Decimal, str] | None:
    """(value, unit) of a text that starts with a number, in digits or words up to twelve, else None."""
    head, _, rest = fold(text).partition(" ")
    if head in _NUMBER_WORDS:
        head = str(_NUMBER_WORDS.index(head))
    if not _DIGITS.fullmatch(head):
        return None
    value = Decimal(head)
    scale, _, unit = rest.partition(" ")
    return (value * _SCALE[scale], unit) if scale in _SCALE else (value, rest)


def compare(first: str, second: str) -> int | None:
    """-1, 0 or 1 as `first` comes before, with or after `second`; None when their order is not determined."""
    dates = parse_date(first), parse_date(second)
    if None not in dates:
        for a, b in zip(*dates, strict=True):
            if a != b:
                return None if 0 in (a, b) else (-1 if a < b else 1)
        return 0
    numbers = parse_number(first), parse_number(second)
    if None in numbers or numbers[0][1] != numbers[1][1]:
        return None
    a, b = numbers[0][0], numbers[1][0]
    return (a > b) - (a < b)


def _date_spellings(date: tuple[int, int, int]) -> list[str]:
    """The folded ways to write a full date."""
    year, month, day = date
    suffix = "th" if 10 <= day <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    days = dict.fromkeys((str(day), f"{day:02d}", f"{day}{suffix}"))
    months = [name for name, number in _MONTH_NUMBER.items() if number == month]
    texts = [f"{year:04d} {month:02d} {day:02d}"]
    for m in months:
        texts += [t for d in days for t in (f"{d} {m} {year}", f"{d} of {m} {year}", f"{m} {d} {year}")]
    return texts


# --------------------------------------------------------------------------------------------------- matching


def mentions(text: str, names: Sequence[str], answer_type: str = "entity") -> str | None:
    """The first of `names` that stands in `text` as whole words, else None.

    A full date is found in any word order.  "yes" and "no" stand everywhere in prose, so with `answer_type`
    "yesno" the text must begin with the name.
    """
    words = f" {fold(text)} "
    for name in names:
        spellings = _spellings(name)
        if answer_type == "yesno":
            if any(words.startswith(f" {s} ") for s in spellings):
                return name
        elif any(f" {s} " in words for s in spellings):
            return name
    return None


def _spellings(name: str) -> list[str]:
    """How a name may stand in folded text."""
    date = parse_date(name)
    if date and all(date):
        return _date_spellings(date)
    folded = fold(name)
    without_article = fold_name(name)
    # "The Who" must not be found in every "who"; "the Danish Girl" may lose its article.
    texts = [folded, without_article] if " " in without_article else [folded]
    return [t for t in dict.fromkeys(texts) if t]


def exact_answer(response: str) -> str | None:
    """The text of the `## Exact Answer` section without citations, or None when there is none or it is empty.

    Several such sections that disagree are joined, so that hedging never equals one accepted name.
    """
    bodies = [response[s.body : s.end] for s in sections(response) if s.title == "exact answer"]
    found = [without_markers(without_links(body)).strip() for body in bodies]
    texts = list({fold_name(text): text for text in found if text}.values())
    return "\n".join(texts) or None


def same_answer(extracted: str | None, question: Question) -> bool:
    """Whether the extracted answer as a whole equals one accepted answer of the question."""
    return extracted is not None and any(_equal(extracted, name, question) for name in question.answers)


def _equal(text: str, name: str, question: Question) -> bool:
    folded = fold_name(text)
    if not folded:
        return False
    if folded == fold_name(name):
        return True
    dates = parse_date(text), parse_date(name)
    if None not in dates:
        return dates[0] == dates[1]
    return _equal_numbers(parse_number(text), parse_number(name), question)


def _equal_numbers(first: tuple | None, second: tuple | None, question: Question) -> bool:
    """Equal values, and units that are equal or (where one side has none) named in the question."""
    if first is None or second is None or first[0] != second[0]:
        return False
    if first[1] == second[1]:
        return True
    asked = set(fold(question.question).split())
    return "" in (first[1], second[1]) and set((first[1] + second[1]).split()) <= asked
