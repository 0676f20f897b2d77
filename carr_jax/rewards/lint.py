"""What keeps rubrics from scoring, or gives away what they ask for (CaRR, section 3.1).

    structure   can every rubric be reached from `<E0>`, and does every entity have a name?  All files must
    lint        and is each one short sentence, told once, that names nothing hidden?  What is made here must

A finding is one line: which rubric, what is wrong, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from carr_jax.records import PLACEHOLDER, Question, Rubric
from carr_jax.rewards.matching import fold, mentions
from carr_jax.rewards.quoting import quoted
from carr_jax.rewards.rubrics import connected, entity_ids

MOST_RUBRICS = 40  # the paper's mean is 10.1
LONGEST = 300  # characters of a rubric
_SHOWN = 80
# What somebody wrote who meant a placeholder, and a well-written one.
_MEANT = re.compile(r"[<\[{(]\s*[Ee]\s*_?\d+\s*[>\]})]")
_WELL_WRITTEN = re.compile(r"<E(?:0|[1-9]\d*)>")
# The end of a sentence before another one; "Dr.", "J. R." and "1. FC" end none, and titles hold ! and ?.
_NEXT_SENTENCE = re.compile(
    r"(?:\b(?!(?:Assn|Capt|Corp|Dept|Prof|Sept|Univ)\b)[^\W\d_]{4,}|\b[a-z]{3}|\d{3}|[>)\]])[.][\"'”)\]]*"
    r"\s+[\"'“(\[]?(?=[A-Z<])|[。！？](?=.)"
)


def lint(question: Question, hidden: Sequence[str] = ()) -> list[str]:
    """Everything that is wrong with the rubrics of a question; empty when all is well.

    `hidden` are further names that no rubric may hold, besides the answers and the names of the entities.
    """
    if not question.rubrics:
        return ["there are no rubrics; write one statement for each fact of the question"]
    findings = structure(question)
    if len(question.rubrics) > MOST_RUBRICS:
        findings.append(f"{len(question.rubrics)} rubrics; keep the {MOST_RUBRICS} that the answer needs most")
    for number, rubric in enumerate(question.rubrics, 1):
        findings += [f"{_which(number, rubric)} {says}" for says in _wording(rubric)]
    return findings + _duplicates(question.rubrics) + _leaks(question, hidden)


def structure(question: Question) -> list[str]:
    """What keeps rubrics of a question from ever scoring; empty when all is well, or there are no rubrics.

    Every rubric needs a placeholder and a path of shared placeholders to `<E0>`; ids run from E0 without a gap;
    and where names are given, each entity has one.
    """
    if not question.rubrics:
        return []
    numbered = list(enumerate(question.rubrics, 1))
    used = set(entity_ids(question.rubrics))
    findings = [
        f"{_which(n, r)} has no placeholder; name its hidden entities <E0>, <E1>, ..., or leave it out"
        for n, r in numbered
        if not r.entities
    ]
    if "E0" not in used:
        findings.append("no rubric mentions <E0>, the answer; say what is known of it")
    if used != {f"E{k}" for k in range(len(used))}:
        given = ", ".join(entity_ids(question.rubrics))
        findings.append(f"placeholders have gaps: {given}; number them from <E0> on, without leading zeros")
    linked = connected_to_answer(question.rubrics)
    findings += [
        f"{_which(n, r)} is not connected to <E0>; add the fact that ties its entities to the others"
        for (n, r), ok in zip(numbered, linked, strict=True)
        if r.entities and not ok
    ]
    if question.entities:
        findings += [f"<{e}> has no name" for e in sorted(used) if not any(question.entities.get(e, ()))]
        findings += [f"<{e}> stands in no rubric" for e in sorted(set(question.entities) - used)]
    return findings


def connected_to_answer(rubrics: Sequence[Rubric]) -> list[bool]:
    """For each rubric, whether it is reached from `<E0>` over rubrics that share placeholders."""
    return list(connected([rubric.entities for rubric in rubrics], [True] * len(rubrics)))


def _which(number: int, rubric: Rubric) -> str:
    """A rubric in a finding, on one line."""
    text = " ".join(rubric.text.split())
    return f'rubric {number} ("{text[:_SHOWN]}{"..." * (len(text) > _SHOWN)}")'


def _wording(rubric: Rubric) -> list[str]:
    """What is wrong with one statement by itself."""
    text = rubric.text.strip()
    says = [
        f"writes {wrong} for a placeholder; write it as <E0>, <E1>, ..."
        for wrong in dict.fromkeys(_MEANT.findall(text))
        if not _WELL_WRITTEN.fullmatch(wrong)
    ]
    if not fold(PLACEHOLDER.sub(" ", text)):
        says.append("states nothing; write one whole sentence")
    if "\n" in text or _NEXT_SENTENCE.search(text):
        says.append("is more than one sentence; make each fact a rubric of its own")
    if quoted(text) != text:
        says.append("holds control tokens or characters that are not seen; leave them out")
    if len(text) > LONGEST:
        says.append(f"has {len(text)} characters, {LONGEST} at most; split it, or say it shorter")
    return says


def _duplicates(rubrics: Sequence[Rubric]) -> list[str]:
    """Rubrics that say what an earlier one says, but for case, accents and punctuation."""
    first: dict[str, int] = {}
    findings = []
    for number, rubric in enumerate(rubrics, 1):
        earlier = first.setdefault(fold(rubric.text), number)
        if earlier != number:
            findings.append(f"{_which(number, rubric)} repeats rubric {earlier}; leave it out")
    return findings


def _leaks(question: Question, hidden: Sequence[str]) -> list[str]:
    """Rubrics that hold the name of something hidden, as whole words.  What the question names is no secret."""
    answers = () if question.answer_type == "yesno" else question.answers
    names = dict.fromkeys([*answers, *(n for names in question.entities.values() for n in names), *hidden])
    secret = [name for name in names if not mentions(question.question, (name,))]
    findings = []
    for number, rubric in enumerate(question.rubrics, 1):
        if leaked := mentions(PLACEHOLDER.sub(" . ", rubric.text), secret):
            findings.append(f"{_which(number, rubric)} names {leaked!r}; write its placeholder instead")
    return findings
