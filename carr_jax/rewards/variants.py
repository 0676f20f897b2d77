"""Other names of the hidden entities, written by a model once, before training (E-GRPO, appendix H).

They stand apart from the accepted names, in `Question.metadata["variants"]`: only the robust entity match of
E-GRPO reads them, so that a wrong one never makes an answer right.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from carr_jax.llm.ask import ask
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.client import ChatClient
from carr_jax.llm.errors import Unusable
from carr_jax.llm.messages import Reply, Request
from carr_jax.llm.replies import answer_text, read_object
from carr_jax.records import Question
from carr_jax.rewards.entities import VARIANTS, hidden_entities
from carr_jax.rewards.matching import fold_name, mentions
from carr_jax.rewards.prompts import variants_prompt
from carr_jax.rewards.rubric_maker import Made, MakerOptions

FEWEST, MOST = 5, 10  # names that a model is asked for, of each entity
_SHORTEST, _LONGEST = 3, 80  # characters of a name, folded: "US" would be found in every "us"


async def make_variants(
    question: Question, client: ChatClient, cache: ReplyCache, options: MakerOptions = MakerOptions()
) -> Made:
    """The question with variants; as it was when nothing is hidden.  Raises calls.errors.CannotGoOn."""
    hidden = hidden_entities(question)
    if not hidden:
        return Made(question)
    prompt = variants_prompt(question, hidden, (FEWEST, MOST))
    request = Request(prompt.messages, options.max_tokens, options.temperature, schema=prompt.schema)
    read = _reader(tuple(hidden), prompt.code)
    asked = await ask(client, cache, request, read, purpose="variants", tries=options.tries)
    paid = dict(rounds=1, calls=asked.calls, tokens=asked.tokens, cost_usd=asked.cost_usd)
    if asked.value is None:
        return Made(None, reason=asked.reason, **paid)
    metadata = {**question.metadata, VARIANTS: usable_variants(question, asked.value)}
    return Made(dataclasses.replace(question, metadata=metadata), **paid)


def usable_variants(question: Question, said: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """What a model wrote, without what could be found where nobody thinks of the entity.

    Left out are names that are too short or too long, that the question has, that belong to another entity as
    well, and those that are known already; entities without any are left out, too.
    """
    owners: dict[str, set[str]] = {}
    for entity, names in [*question.entities.items(), *said.items()]:
        for name in names:
            owners.setdefault(fold_name(name), set()).add(entity)
    usable = {}
    for entity, names in said.items():
        known = {fold_name(name) for name in question.entities[entity]}
        kept: dict[str, str] = {}
        for name in (" ".join(name.split()) for name in names):
            folded = fold_name(name)
            fits = len(folded) >= _SHORTEST and len(name) <= _LONGEST
            if fits and folded not in known and owners[folded] == {entity} and not _asked(question, name):
                kept.setdefault(folded, name)
        if kept:
            usable[entity] = list(kept.values())[:MOST]
    return usable


def _asked(question: Question, name: str) -> bool:
    return bool(mentions(question.question, (name,)))


def _reader(entities: Sequence[str], code: str) -> Callable[[Reply], dict[str, list[str]]]:
    """Reads a list of names for each entity from a reply that carries the code of its prompt."""

    def read(reply: Reply) -> dict[str, list[str]]:
        said = read_object(answer_text(reply), entities, {"code": code})
        for entity, names in said.items():
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise Unusable(f"{entity!r} is no list of texts")
        return said

    return read
