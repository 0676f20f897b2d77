"""A draft in words: the question by fixed templates, its rubrics, and the walk that solves it.

A chain of facts becomes one phrase ("the birthplace of the author of ..."), anything with branches a few short
sentences that speak of "a town" first and of "the town" afterwards.  Rubrics tell each fact as its page does, a
date in full where the question has a decade only: a page can prove that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from carr_jax.data.drafts import ASKED, Clue, Draft
from carr_jax.data.graph import Graph, value_type
from carr_jax.records import Question, Rubric
from carr_jax.rewards.lint import lint
from carr_jax.rewards.matching import mentions

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_ASKS = ("{w} is {x}?", "{w} is {x}?", "Please find out: {w} is {x}?", "Can you tell me {x}?")
_DEEPEST = 4  # hidden things of one phrase


def question_of(graph: Graph, draft: Draft, source: str, split: str = "train") -> Question:
    """The draft as a question; its id tells answer and clues, so equal questions have equal ids."""
    places = _places(draft)
    names = {place: _names(graph, draft, end) for end, place in places.items()}
    answer = names["E0"]
    asked_value = draft.answer == ASKED
    return Question(
        id=f"{source}-{draft.strategy}-{_digest(draft)}",
        question=text_of(graph, draft),
        answer=answer[0],
        answer_aliases=answer[1:],
        answer_type=value_type(answer[0]) if asked_value else "entity",
        rubrics=tuple(Rubric(_rubric(graph, clue, places), (clue.fact.url,)) for clue in draft.clues),
        entities=dict(sorted(names.items(), key=lambda item: int(item[0][1:]))),
        gold_urls=tuple(dict.fromkeys(clue.fact.url for clue in draft.clues)),
        hops=sum(not clue.fact.is_value or ASKED in clue.ends for clue in draft.clues),
        source=source,
        split=split,
        metadata={
            "strategy": draft.strategy,
            "walk": list(_walk(graph, draft, places)),
            "clues": [statement(graph, clue, lambda end: _place(graph, end, places)) for clue in draft.clues],
        },
    )


def faults(question: Question) -> list[str]:
    """What is wrong with a question besides its facts: what it gives away, and the findings of the linter."""
    given = mentions(question.question, [name for names in question.gold_entities for name in names])
    leak = [f"the question names {given!r}, which is to be found out"] if given else []
    return leak or lint(question)


def _digest(draft: Draft) -> str:
    """What a question asks, whatever its words: the answer and what is told of it."""
    told = sorted((*c.fact.__dict__.values(), c.told) for c in draft.clues)
    key = json.dumps([draft.answer, sorted(draft.named), told])
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def _places(draft: Draft) -> dict[str, str]:
    """The placeholder ids of what is hidden; the answer is E0."""
    return {end: f"E{k}" for k, end in enumerate(draft.hidden)}


def _names(graph: Graph, draft: Draft, end: str) -> tuple[str, ...]:
    return (draft.asked_value,) if end == ASKED else graph.entities[end].names


# ------------------------------------------------------------------------------------------------- statements


def statement(graph: Graph, clue: Clue, name: Callable[[str], str], exact: bool = False) -> str:
    """A fact as a sentence; `name` gives the words for its ends.  `exact` tells values as the page does."""
    fact, template = clue.fact, graph.statement(clue.fact.relation)
    object = (fact.object if exact else clue.told) if clue.told else name(clue.ends[-1])
    if object.startswith("the ") and clue.told not in ("", fact.object) and not exact:
        template = re.sub(r"\b(on|is) \{o\}", lambda m: {"on": "in {o}", "is": "lies in {o}"}[m[1]], template)
    words = {"s": name(fact.subject), "o": object}
    return _capital(re.sub(r"\{([so])\}", lambda match: words[match[1]], template))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _rubric(graph: Graph, clue: Clue, places: Mapping[str, str]) -> str:
    return statement(graph, clue, lambda end: _place(graph, end, places), exact=True)


def _place(graph: Graph, end: str, places: Mapping[str, str]) -> str:
    """The placeholder of what is hidden, the name of what is not, with the article that its kind needs."""
    if end == ASKED:
        return "<E0>"
    word = f"<{places[end]}>" if end in places else graph.entities[end].name
    return _with_article(graph, end, word)


def _with_article(graph: Graph, entity: str, word: str) -> str:
    article = graph.kind(entity).article
    return f"{article} {word}" if article else word


def _walk(graph: Graph, draft: Draft, places: Mapping[str, str]) -> list[dict[str, str]]:
    """The steps that solve the question, in the form that `data.sources` gives evidence in too."""
    known, steps = set(draft.named), []

    def word(end: str) -> str:
        return f"<{places[end]}>" if end in places else graph.entities[end].name

    for clue in draft.clues:
        fact, subject = clue.fact, word(clue.fact.subject)
        if fact.subject in known:
            object = clue.fact.object if clue.told else word(clue.ends[-1])
            steps.append(_step(subject, fact.relation, object, fact.url, f"{subject} {fact.relation}"))
        else:
            query = " ".join(_search_words(graph, draft, fact.subject, known, word))
            steps.append(_step("", "description", subject, fact.url, query))
        known |= {*clue.ends}
    return steps


def _search_words(
    graph: Graph, draft: Draft, entity: str, known: set[str], word: Callable[[str], str]
) -> list[str]:
    """What one types to find an entity: its kind, what is told of it, and what is tied to it and known."""
    words = [graph.entities[entity].kind]
    for clue in draft.clues:
        if clue.fact.subject == entity and clue.told:
            words.append(clue.told)
        elif clue.fact.subject == entity and clue.ends[-1] in known:
            words += [clue.fact.relation, word(clue.ends[-1])]
    return words


def _step(subject: str, relation: str, object: str, url: str, query: str) -> dict[str, str]:
    return {"subject": subject, "relation": relation, "object": object, "url": url, "query": query}


# --------------------------------------------------------------------------------------------------- questions


def text_of(graph: Graph, draft: Draft) -> str:
    """The question in words; equal drafts read the same."""
    phrase = _phrase(graph, draft, draft.answer, None) if len(draft.hidden) <= _DEEPEST else None
    if phrase is None:
        return _told_in_sentences(graph, draft)
    ask = _ASKS[int(_digest(draft), 16) % len(_ASKS)]
    return _capital(ask.format(w=_who(graph, draft), x=phrase))


def _phrase(graph: Graph, draft: Draft, end: str, come_from: Clue | None) -> str | None:
    """`end` as a noun phrase that tells all that lies behind it; None where that would need two branches."""
    if end in draft.named:
        return _with_article(graph, end, graph.entities[end].name)
    clues = [clue for clue in draft.clues if end in clue.ends and clue is not come_from]
    ties = [clue for clue in clues if len(clue.ends) > 1]
    if len(ties) > 1 or not clues or not all(graph.is_noun(clue.fact.relation) for clue in ties):
        return None
    if len(clues) == 1 and clues[0].ends[-1] == end and ties:
        subject = _phrase(graph, draft, clues[0].fact.subject, clues[0])
        return subject and f"the {clues[0].fact.relation} of {subject}"
    if any(clue.fact.subject != end for clue in clues):
        return None
    values = [_predicate(graph, clue) for clue in clues if clue.told]
    further = [_phrase(graph, draft, clue.ends[-1], clue) for clue in ties]
    if None in further or None in values or ASKED in (end for clue in ties for end in clue.ends):
        return None
    owned = [f"whose {clue.fact.relation} is {x}" for clue, x in zip(ties, further, strict=True)]
    told = [f"{graph.kind(end).pronoun} {' and '.join(values)}"] * bool(values)
    return f"the {graph.entities[end].kind} {' and '.join([*told, *owned])}"


def _predicate(graph: Graph, clue: Clue) -> str | None:
    """A statement without its subject, where it stands first: "was born in 1712"."""
    said = statement(graph, clue, lambda end: "\0").rstrip(".")
    return said.removeprefix("\0 ") if said.startswith("\0 ") else None


def _told_in_sentences(graph: Graph, draft: Draft) -> str:
    """One sentence for each thing and what is told of it, then the question."""
    *before, last = draft.clues
    asks_last = last.ends[-1] == draft.answer and not any(draft.answer in clue.ends for clue in before)
    asks_last = asks_last and graph.is_noun(last.fact.relation)
    told = before if asks_last else list(draft.clues)
    trial = _Telling(graph, draft, Counter())
    trial.sentences(told, last)  # to see what has to be told apart
    telling = _Telling(graph, draft, trial.count)
    sentences = telling.sentences(told, last)
    asked = f"the {last.fact.relation} of" if asks_last else "the name of"
    name = telling.name(last.fact.subject if asks_last else draft.answer)
    return " ".join([*sentences, f"{_capital(_who(graph, draft)) if asks_last else 'What'} is {asked} {name}?"])


def _who(graph: Graph, draft: Draft) -> str:
    """The word that asks for the answer."""
    return "who" if draft.answer != ASKED and graph.kind(draft.answer).pronoun == "who" else "what"


class _Telling:
    """What a text has told so far, and what it calls each thing: "a town" at first, then "the town".

    What comes up as the captain of something is called the captain, when nothing else is; and what only leads
    on to something else is spoken of as "the author of the novel" there.  Other things are called by their
    kind, and numbered where `several` says that more than one of the kind are.
    """

    def __init__(self, graph: Graph, draft: Draft, several: Mapping[str, int]) -> None:
        self.graph, self.draft, self.several = graph, draft, several
        self.met: dict[str, str] = {}
        self.kinds = {graph.entities[e].kind for e in draft.hidden if e != ASKED}
        self.roles = Counter(clue.fact.relation for clue in draft.clues)
        self.count: Counter[str] = Counter()
        self.through: set[str] = set()  # what is spoken of by what leads to it

    def sentences(self, clues: Sequence[Clue], last: Clue) -> list[str]:
        """All of the clues; `last` is told by the question or among them."""
        left = list(clues)
        told = []
        while left:
            if not self._leads_on(left[0], [*left[1:], last]):
                told.append(self.sentence(left))
                continue
            fact = left.pop(0).fact
            self.met[fact.object] = f"{fact.relation} of {self.name(fact.subject)}"
            self.through.add(fact.object)
        return told

    def _leads_on(self, clue: Clue, later: Sequence[Clue]) -> bool:
        """Whether the object of a clue only leads from something that is told to one other thing."""
        object, subject = clue.ends[-1], clue.fact.subject
        uses = {other.fact for other in later if object in other.ends}
        return (
            len(clue.ends) == 2
            and self._is_new(object)
            and object != self.draft.answer
            and object != ASKED
            and subject not in self.through
            and not self._is_new(subject)
            and len(uses) == 1
            and next(iter(uses)).subject == object
            and all(self.graph.is_noun(fact.relation) for fact in (clue.fact, *uses))
        )

    def sentence(self, left: list[Clue]) -> str:
        """Tells the first clue that is left, with all that goes into its sentence; takes them from `left`."""
        clue = left.pop(0)
        fact, object = clue.fact, clue.ends[-1]
        is_noun = self.graph.is_noun(fact.relation)
        if clue.told:
            return self._told_of(clue, _taken(self.graph, left, fact.subject))
        if is_noun and self._is_new(object) and (values := _taken(self.graph, left, object)):
            role = f"the {fact.relation} of {self.name(fact.subject)}"
            if self._is_role(fact.relation):
                self.met[object] = fact.relation
            else:
                role = f"{role} is {self.name(object)} {self.graph.kind(object).pronoun}"
            return _capital(f"{role} {' and '.join(values)}.")
        if is_noun and self._is_new(fact.subject) and not self._is_new(object):
            return _capital(f"{self.name(object)} is the {fact.relation} of {self.name(fact.subject)}.")
        return statement(self.graph, clue, self.name)

    def name(self, end: str) -> str:
        """What a thing is called here."""
        if end in self.draft.named:
            return _with_article(self.graph, end, self.graph.entities[end].name)
        if end in self.met:
            return f"the {self.met[end]}"
        self._call(end)
        return f"{'an' if self.met[end][0] in 'aeiou' else 'a'} {self.met[end]}"

    def _is_new(self, end: str) -> bool:
        return end not in self.draft.named and end not in self.met

    def _is_role(self, relation: str) -> bool:
        """Whether a thing may be called by its relation to another: nothing else may be meant."""
        return self.roles[relation] == 1 and relation not in self.kinds

    def _call(self, end: str) -> None:
        """Give a thing the name of its kind, numbered where it must be."""
        kind = self.graph.entities[end].kind
        number = _ORDINALS[min(self.count[kind], len(_ORDINALS) - 1)]
        self.met[end] = f"{number} {kind}" if self.several.get(kind, 0) > 1 else kind
        self.count[kind] += 1

    def _told_of(self, clue: Clue, further: Sequence[str]) -> str:
        """A value, and what else is told of its subject; in one sentence where its statement allows it."""
        first = _predicate(self.graph, clue)
        sentences = [] if first else [statement(self.graph, clue, self.name)]
        predicates = [first, *further] if first else further
        if predicates:
            sentences.append(_capital(f"{self.name(clue.fact.subject)} {' and '.join(predicates)}."))
        return " ".join(sentences)


def _taken(graph: Graph, left: list[Clue], subject: str) -> list[str]:
    """What is told of `subject` in words that go into one sentence, taken from what is left to tell."""
    told = {clue: _predicate(graph, clue) for clue in left if clue.told and clue.fact.subject == subject}
    left[:] = [clue for clue in left if not told.get(clue)]
    return [predicate for predicate in told.values() if predicate]
