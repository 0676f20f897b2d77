"""A fixed labelled set for judges, made from the built-in world: scripted answers, and changed ones."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from carr_jax.agent.parser import parse_turn
from carr_jax.records import InputError, Question, Trajectory
from carr_jax.rewards import citations
from carr_jax.rewards.calibration import Label, label_from_json
from carr_jax.rewards.citations import Reading
from carr_jax.rewards.history import from_plain
from carr_jax.rewards.matching import mentions
from carr_jax.rollout.scripted import Policy, citer, expert_answer, guesser
from carr_jax.search.world import World, WorldConfig, build_world
from carr_jax.stored import to_json

QUESTIONS = 24
_WORLD = WorldConfig(
    seed=2601, entities_per_kind=40, distractors=80, look_alikes=20, hops=(1, 2, 3), obfuscate=0.4
)
_OTHERS = 3  # pages of no use beside the right ones


@dataclass(frozen=True)
class Setting:
    """A question with its gold pages, pages of no use, and for each entity a wrong name of the same kind."""

    question: Question
    gold: Mapping[str, str]
    others: Mapping[str, str]
    wrong: Mapping[str, str]

    @property
    def names(self) -> dict[str, str]:
        return {entity: names[0] for entity, names in self.question.entities.items()}


def world_labels(count: int = QUESTIONS) -> list[Label]:
    """The labels of `count` questions; always the same, and those of a smaller count come first."""
    world = build_world(_WORLD)
    questions = world.questions("train", count)
    return [label for question in questions for label in labels_of(_setting(world, question))]


def labels_of(setting: Setting) -> Iterator[Label]:
    """What honest, lazy and wrong answers to one question should be judged to be."""
    yield from _outcome_labels(setting)
    yield from _identify_labels(setting)
    yield from _support_labels(setting)


def read_labels(path: Path) -> list[Label]:
    """Labels from a file of JSON lines, as `stored.to_json` writes them.  Raises InputError with the line."""
    labels = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    for number, line in enumerate(lines, 1):
        try:
            labels.append(label_from_json(json.loads(line)))
        except KeyError as error:
            raise InputError(f"{path}:{number}: the key {error} is missing") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{path}:{number}: {error}") from None
    if not labels:
        raise InputError(f"{path}: no labels")
    return labels


# ----------------------------------------------------------------------------------------------------- labels


def _outcome_labels(setting: Setting) -> Iterator[Label]:
    question, wrong = setting.question, setting.wrong["E0"]
    right = expert_answer(question)
    heading, answer = "## Exact Answer\n", question.answer
    cases = (
        ("expert", right, True),
        ("guesser", last_content(guesser(question)), True),
        ("citer", last_content(citer(question)), True),
        ("shouted", right.replace(heading + answer, heading + answer.upper()), True),
        ("wrong", expert_answer(answering(question, wrong)), False),
        ("hedged", right.replace(heading + answer, f"{heading}{answer} or {wrong}"), False),
        ("silent", right.replace(heading + answer, f"{heading}I could not find it."), False),
    )
    for kind, response, expected in cases:
        yield Label("outcome", kind, question, expected, _read(setting, response).answer)


def _identify_labels(setting: Setting) -> Iterator[Label]:
    """A wrong answer may be given its name or none: it earns nothing either way, and the right one may not."""
    question, right = setting.question, expert_answer(setting.question)
    all_named = {entity: list(names) for entity, names in question.entities.items()}
    only_answer = {entity: [None] for entity in all_named} | {"E0": all_named["E0"]}
    wrong = setting.wrong["E0"]
    cases = [
        ("expert", right, all_named),
        ("guesser", last_content(guesser(question)), only_answer),
        ("citer", last_content(citer(question)), only_answer),
        ("wrong", expert_answer(answering(question, wrong)), all_named | {"E0": [wrong, None]}),
    ]
    if "E1" in all_named:
        unnamed = right.replace(setting.names["E1"], "a certain one")
        cases.append(("unnamed", unnamed, all_named | {"E1": [None]}))
    for kind, response, expected in cases:
        yield Label("identify", kind, question, expected, _read(setting, response).stated)


def _support_labels(setting: Setting) -> Iterator[Label]:
    question, names = setting.question, setting.names
    indices = tuple(range(len(question.rubrics)))
    last = question.gold_urls[-1]
    without_last = {url: text for url, text in setting.gold.items() if url != last}
    entity = max(names, key=lambda e: int(e[1:]))
    misnamed = {**names, entity: setting.wrong[entity]}
    cases = (
        ("expert", names, setting.gold | setting.others, [True for _ in indices]),
        (
            "unread",
            names,
            without_last | setting.others,
            [last not in r.support_urls for r in question.rubrics],
        ),
        ("misnamed", misnamed, setting.gold, [entity not in r.entities for r in question.rubrics]),
        ("elsewhere", names, setting.others, [False for _ in indices]),
    )
    for kind, given, pages, expected in cases:
        yield Label("support", kind, question, expected, names=given, indices=indices, pages=pages)


# -------------------------------------------------------------------------------------------------- responses


def last_content(policy: Policy) -> str:
    """The final answer of a scripted policy whose tools find nothing."""
    text = next(policy)
    try:
        while True:
            text = policy.send([""])
    except StopIteration:
        return parse_turn(text, "stop").content


def answering(question: Question, answer: str) -> Question:
    """The question as somebody sees it who takes `answer` for right."""
    return dataclasses.replace(question, answer=answer, entities={**question.entities, "E0": (answer,)})


def _read(setting: Setting, response: str) -> Reading:
    """A response as the reward reads it."""
    return citations.read(_attempt(setting.question, response, setting.gold))


def _setting(world: World, question: Question) -> Setting:
    rng = random.Random(question.id)
    texts = {page.url: page.text for page in world.pages}
    gold = {url: texts[url] for url in question.gold_urls}
    known = [question.question, *gold.values()]
    names = [n for names in question.entities.values() for n in names]
    unrelated = sorted(url for url, text in texts.items() if url not in gold and not mentions(text, names))
    others = {url: texts[url] for url in rng.sample(unrelated, _OTHERS)}
    return Setting(
        question, gold, others, {e: _wrong(world, n[0], known, rng) for e, n in question.entities.items()}
    )


def _wrong(world: World, name: str, known: list[str], rng: random.Random) -> str:
    """Another thing of the same kind, or another year, that stands in none of the `known` texts."""
    if name in world.entities:
        kind = world.entities[name].kind
        names = [e.name for e in world.entities.values() if e.kind == kind and e.name != name]
    else:
        names = [str(year) for year in range(1700, 1900) if str(year) != name]
    return rng.choice([n for n in names if not any(mentions(text, (n,)) for text in known)])


# ----------------------------------------------------------------------------------------------------- a group


def scripted_group(question: int = 0) -> tuple[Question, dict[str, Trajectory]]:
    """A question of the built-in world and named attempts at it, for looking at rewards without training.

    It has a described anchor and three hops; the n-th such question is taken.
    """
    world = build_world(_WORLD)
    known = [q for q in world.questions("train", 40 * (question + 1)) if q.hops == 3 and "E3" in q.entities]
    setting = _setting(world, known[question])
    asked, right = setting.question, expert_answer(setting.question)
    first = asked.rubrics[0]
    attempts = {
        "expert": (right, setting.gold),
        "skips a name": (right.replace(setting.names["E2"], "a certain one"), setting.gold),
        "skips a page": (
            right,
            {url: text for url, text in setting.gold.items() if url not in first.support_urls},
        ),
        "cites, names nobody": (last_content(citer(asked)), setting.gold),
        "guesser": (last_content(guesser(asked)), {}),
        "wrong, well cited": (expert_answer(answering(asked, setting.wrong["E0"])), setting.gold),
    }
    return asked, {name: _attempt(asked, *attempt) for name, attempt in attempts.items()}


def _attempt(question: Question, response: str, pages: Mapping[str, str]) -> Trajectory:
    return from_plain({"question": to_json(question), "response": response, "pages": pages})[1]
