"""A question in a model's words: harder to search for, and still the same question.

The reply is not trusted.  A program checks that each fact is told, by words that the model must point at, with
the names and numbers that make it a fact; that nothing hidden is named and no number invented.  What is wrong
goes back to the model for some rounds, and then the question is refused.  Whether those words really tell the
fact no program sees: the difficulty filter and a look at some questions are for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from carr_jax.data.wording import faults
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.errors import Unusable
from carr_jax.llm.messages import Reply
from carr_jax.llm.replies import answer_text, read_object
from carr_jax.records import PLACEHOLDER, Question
from carr_jax.rewards.matching import fold
from carr_jax.rewards.prompts import Prompt, one_line, rewording_prompt
from carr_jax.rewards.quoting import quoted
from carr_jax.rewards.rubric_maker import Judged, Made, MakerOptions, draft_and_repair
from carr_jax.rewards.rubrics import literal_words

LONGEST = 1_200  # characters of a question
_MARKS = re.compile(r"https?://|[<>{}\[\]]")


async def reworded(
    question: Question, client: ChatClient, cache: ReplyCache, options: MakerOptions = MakerOptions()
) -> Made:
    """The question by a model; `metadata["clues"]` are the facts that it must tell.

    Raises llm.errors.CannotGoOn, such as a budget that is spent.
    """
    facts: Sequence[str] = question.metadata["clues"]

    def prompt(draft: Sequence[str], findings: Sequence[str]) -> Prompt:
        return rewording_prompt(question, facts, draft, findings, LONGEST)

    def judge(reply: Mapping[str, str]) -> Judged:
        text = one_line(reply["question"])
        metadata = {**question.metadata, "plain": question.question}
        found = findings(question, text, [reply[f"F{k}"] for k in range(1, len(facts) + 1)])
        return replace(question, question=text, metadata=metadata), (text,), found

    return await draft_and_repair(
        client, cache, options, "questions", prompt, lambda code: _reader(code, len(facts)), judge
    )


def findings(question: Question, text: str, told: Sequence[str]) -> list[str]:
    """What is wrong with `text` as other words for a question; `told[k]` are its words for fact k."""
    if len(text) > LONGEST:
        return [f"the question has {len(text)} characters, {LONGEST} at most; say it shorter"]
    found = faults(replace(question, question=text))
    if PLACEHOLDER.search(text):
        found.append("the question holds a placeholder; describe what it stands for")
    elif quoted(text) != text or _MARKS.search(text):
        found.append("the question holds an address, a bracket or a control token; write plain sentences")
    if not text.endswith("?"):
        found.append("the last sentence is no question; end with what is asked for, and a question mark")
    if strange := sorted(_numbers(text) - _numbers(question.question)):
        found.append(f"no fact has the number {strange[0]!r}; leave it out")
    return found + _untold(text, question.metadata["clues"], told)


def _untold(text: str, facts: Sequence[str], told: Sequence[str]) -> list[str]:
    """The facts that the text does not tell, as far as a program can see."""
    words, first = f" {fold(text)} ", {}
    found = []
    for k, (fact, said) in enumerate(zip(facts, map(fold, told), strict=True), 1):
        if not said or f" {said} " not in words:
            found.append(f"F{k}: these words are not in the question; copy those that tell it, or tell it")
        elif first.setdefault(said, k) != k:
            found.append(f"F{k}: the same words as for F{first[said]}; tell both, and copy others for each")
        if missing := sorted(word for word in literal_words(fact) if f" {word} " not in words):
            found.append(f"F{k}: the question leaves out {' '.join(missing)!r}, which it must have")
    return found


def _numbers(text: str) -> set[str]:
    return {word for word in fold(text).split() if any(c.isdigit() for c in word)}


def _reader(code: str, facts: int) -> Callable[[Reply], dict[str, str]]:
    """Reads the question and the words for each fact from a reply that carries the code of its prompt."""
    keys = ["question", *(f"F{k}" for k in range(1, facts + 1))]

    def read(reply: Reply) -> dict[str, str]:
        values = read_object(answer_text(reply), keys, {"code": code})
        if not all(isinstance(value, str) for value in values.values()) or not values["question"].strip():
            raise Unusable("the reply holds no text where a text belongs")
        return values

    return read
