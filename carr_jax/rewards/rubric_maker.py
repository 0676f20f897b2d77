"""Rubrics for a question: from its evidence, or by a language model that takes it apart (CaRR, section 3.1).

What a model wrote is linted, and the findings go back to it for some rounds.  What is not clean then is no
rubric; a question is refused with its findings rather than trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from carr_jax.llm.ask import ask
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.errors import Unusable
from carr_jax.llm.messages import Reply, Request
from carr_jax.llm.replies import answer_text, read_object
from carr_jax.records import Question, Rubric
from carr_jax.rewards import rubrics
from carr_jax.rewards.entities import VARIANTS
from carr_jax.rewards.lint import LONGEST, MOST_RUBRICS, lint
from carr_jax.rewards.prompts import rubric_prompt


@dataclass(frozen=True)
class MakerOptions:
    """How a model is asked.  `rounds` counts the repairs after the first draft, `tries` the replies to each."""

    rounds: int = 3
    temperature: float = 0.0
    max_tokens: int = 4096
    tries: int = 3


@dataclass(frozen=True)
class Made:
    """What became of a question.

    `question` has clean rubrics, or is None: then `findings` say what stayed wrong with the `draft`.  Without
    findings nothing is known, and `reason` says which call failed.  Money and tokens are of all rounds.
    """

    question: Question | None
    findings: tuple[str, ...] = ()
    draft: tuple[str, ...] = ()
    reason: str = ""
    rounds: int = 0
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


def from_evidence(question: Question) -> Made:
    """The rubrics that the question came with, made from its evidence, if they are clean."""
    if not question.rubrics:
        return Made(None, ("it has no evidence to make rubrics from; let a model make them",))
    if findings := lint(question):
        return Made(None, tuple(findings), tuple(rubric.text for rubric in question.rubrics))
    return Made(question)


async def make_rubrics(
    question: Question, client: ChatClient, cache: ReplyCache, options: MakerOptions = MakerOptions()
) -> Made:
    """Rubrics by a model.  Raises llm.errors.CannotGoOn, such as a budget that is spent."""
    if question.answer_type == "yesno":
        return Made(
            None, ("yes and no are no entity that rubrics could lead to; use it for outcome reward only",)
        )
    made = Made(None)
    for number in range(options.rounds + 1):
        prompt = rubric_prompt(question, evidence(question), made.draft, made.findings, (MOST_RUBRICS, LONGEST))
        request = Request(prompt.messages, options.max_tokens, options.temperature, schema=prompt.schema)
        asked = await ask(client, cache, request, _reader(prompt.code), purpose="rubrics", tries=options.tries)
        made = replace(
            made,
            rounds=number + 1,
            calls=made.calls + asked.calls,
            tokens=made.tokens + asked.tokens,
            cost_usd=made.cost_usd + asked.cost_usd,
        )
        if asked.value is None:
            return replace(made, findings=(), reason=asked.reason)
        candidate = with_rubrics(question, asked.value)
        findings = lint(candidate, [name for names in question.gold_entities for name in names])
        if not findings:
            return replace(made, question=candidate, findings=(), draft=())
        made = replace(made, findings=tuple(findings), draft=asked.value)
    return made


def with_rubrics(question: Question, texts: Sequence[str]) -> Question:
    """The question with these rubrics alone: names and walks that go with other placeholders are left out."""
    metadata = {k: value for k, value in question.metadata.items() if k not in ("walk", VARIANTS)}
    return replace(question, rubrics=tuple(map(Rubric, texts)), entities={}, metadata=metadata)


def evidence(question: Question) -> tuple[str, ...]:
    """What is known of the way to the answer, one step in a line; () for a question without a walk."""
    names = {entity: names[0] for entity, names in question.entities.items() if names}
    steps = question.metadata.get("walk") or ()
    lines = (" | ".join(step[key] for key in ("subject", "relation", "object") if step[key]) for step in steps)
    return tuple(rubrics.fill(line, names) for line in lines)


def _reader(code: str) -> Callable[[Reply], tuple[str, ...]]:
    """Reads the statements of a reply that carries the code of its prompt."""

    def read(reply: Reply) -> tuple[str, ...]:
        texts = read_object(answer_text(reply), ("rubrics",), {"code": code})["rubrics"]
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise Unusable("'rubrics' is no list of texts")
        return tuple(text.strip() for text in texts)

    return read
