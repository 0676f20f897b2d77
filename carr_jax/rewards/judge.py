"""Judges: who decides whether an answer is right, whom a response names, and what a page supports.

A judge answers with a `Verdict`; one that could not decide says status "unknown", and whatever it raises is
taken as unknown by `rewards.carr`, except that it cannot go on at all.  `ExactJudge` is deterministic and calls
nobody; `rewards.llm_judge` asks a language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from carr_jax.addresses import canonical_url
from carr_jax.records import Question, Rubric, Verdict
from carr_jax.rewards import matching, rubrics


class Judge(Protocol):
    """What the reward asks of a judge.  `response` is the final response without its References."""

    async def outcome(self, question: Question, response: str) -> Verdict:
        """`parsed`: bool, is the answer of the response the gold answer?"""
        ...

    async def identify(self, question: Question, response: str) -> Verdict:
        """`parsed`: {"E0": name or None, ...}, the name that the response states for each rubric entity."""
        ...

    async def support(
        self,
        question: Question,
        names: Mapping[str, str] | None,
        indices: Sequence[int],
        pages: Mapping[str, str],
    ) -> Verdict:
        """`parsed`: one bool for each rubric `question.rubrics[i], i in indices`, filled with `names`.

        `pages` maps cited URLs to what the trajectory saw of them.  `names` is None when identification is
        ablated: then the rubric is judged with its placeholders left open.
        """
        ...


# The dots are how the prompt shows where a name goes: small models copy them.
_NOBODY = frozenset(("", "null", "none", "unknown", "n/a", "...", "…"))


def stated_name(value: Any) -> str | None:
    """A name as a judge gives it: text, a number taken as text, or None, also for the words for it (RC-06).

    Raises ValueError for anything else.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r:.80} is no name")
    text = str(value).strip()
    return None if text.casefold() in _NOBODY else text


class ExactJudge:
    """Decides by string matching against gold answers, gold entity names and gold pages."""

    async def outcome(self, question: Question, response: str) -> Verdict:
        extracted = matching.exact_answer(response)
        return Verdict("outcome", "ok", matching.same_answer(extracted, question), raw=extracted or "")

    async def identify(self, question: Question, response: str) -> Verdict:
        if reason := _nameless(question):
            return Verdict("identify", "unknown", None, raw=reason)
        ids = rubrics.entity_ids(question.rubrics)
        names = {entity: matching.mentions(response, question.entities[entity]) for entity in ids}
        if rubrics.ANSWER in names:
            names[rubrics.ANSWER] = _named_answer(question, response)
        return Verdict("identify", "ok", names)

    async def support(
        self,
        question: Question,
        names: Mapping[str, str] | None,
        indices: Sequence[int],
        pages: Mapping[str, str],
    ) -> Verdict:
        if names is None and (reason := _nameless(question)):
            return Verdict("support", "unknown", None, raw=reason)
        flags = [any(_states(question, names, question.rubrics[i], *p) for p in pages.items()) for i in indices]
        return Verdict("support", "ok", flags)


def _named_answer(question: Question, response: str) -> str | None:
    """E0 is what the Exact Answer says, and nothing that only stands in the explanation."""
    extracted = matching.exact_answer(response)
    if not matching.same_answer(extracted, question):
        return None
    return matching.mentions(extracted, question.entities[rubrics.ANSWER], question.answer_type) or extracted


def _nameless(question: Question) -> str:
    """Why the entities of this question cannot be told from gold names; "" when they can."""
    ids = rubrics.entity_ids(question.rubrics)
    nameless = [entity for entity in ids if not question.entities.get(entity)]
    return f"question {question.id} has no gold names for {', '.join(nameless)}: use an LLM judge" * bool(
        nameless
    )


def _states(question: Question, names: Mapping[str, str] | None, rubric: Rubric, url: str, text: str) -> bool:
    """Whether a page holds what the rubric says: the values, and unless it is gold the literal names too.

    Where gold pages are known, another page must hold two names: "Latin" alone stands on many pages.
    """
    values = [_accepted(question, names, entity) for entity in rubric.entities]
    if not all(accepted and matching.mentions(text, accepted) for accepted in values):
        return False
    if canonical_url(url) in {canonical_url(gold) for gold in rubric.support_urls}:
        return True
    literals = rubrics.literal_words(rubric.text)
    lone = len(values) + bool(literals) < 2
    return not (lone and rubric.support_urls) and literals <= set(matching.fold(text).split())


def _accepted(question: Question, names: Mapping[str, str] | None, entity: str) -> tuple[str, ...]:
    """The names of an entity that count on a page: the stated one and, when that is gold, its aliases."""
    gold = tuple(question.entities.get(entity, ()))
    if names is None:
        return gold
    stated = names[entity]
    return (stated, *gold) if stated in gold else (stated,)
