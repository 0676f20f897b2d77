"""Scripted policies: an engine whose turns are written by a program, run through the very same episode code.

The expert makes the traces that the tiny policy is warm-started on and is the upper bound of every reward;
the others are the failures that a reward must tell apart.  A policy is a generator: it yields the text of a
turn and is sent the outputs of the tools it called, one text per call.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from carr_jax.agent.chat import END_RESPONSE, RESPONSE, Chat, render_turn
from carr_jax.agent.tools import OPEN, SEARCH
from carr_jax.records import PLACEHOLDER, Generation, Question, Sampling, ToolCall

Policy = Generator[str, list[str], None]
_RESULT = re.compile(r"^\[(\d+)\] URL Source: (.*)$", re.MULTILINE)


class ScriptedEngine:
    """The engine protocol around one policy, for one episode; every log-prob is 0.0, every version 0."""

    def __init__(self, chat: Chat, policy: Policy) -> None:
        self.chat = chat
        self.policy = policy
        self._read = 0

    async def generate(self, ids: Sequence[int], sampling: Sampling, session_key: str) -> Generation:
        """The policy's next turn, cut at the token budget."""
        outputs = tool_outputs(self.chat, ids[self._read :])
        text = self.policy.send(outputs) if self._read else next(self.policy)
        turn = self.chat.turn_ids(text)
        finish = "stop" if len(turn) <= sampling.max_tokens else "length"
        turn = turn[: sampling.max_tokens]
        self._read = len(ids) + len(turn)
        return Generation(tuple(turn), (0.0,) * len(turn), (0,) * len(turn), finish)

    async def release(self, session_key: str) -> None:
        self.policy.close()


def tool_outputs(chat: Chat, ids: Sequence[int]) -> list[str]:
    """The outputs in an observation.  Control ids delimit them, so no text inside an output can end it."""
    opening, closing = chat.tokenizer.id(RESPONSE), chat.tokenizer.id(END_RESPONSE)
    starts = [i for i, token in enumerate(ids) if token == opening]
    ends = [i for i, token in enumerate(ids) if token == closing]
    return [chat.tokenizer.decode(ids[a + 1 : b])[1:-1] for a, b in zip(starts, ends, strict=True)]


# ------------------------------------------------------------------------------------------------- policies


def expert(question: Question, wander: float = 0.0) -> Policy:
    """Walks to the answer page by page, then states every rubric and cites the page that it stands on.

    Follows `question.metadata["walk"]`: steps with subject, relation, object, url and query, where placeholders
    stand for the names in `question.entities`.  With probability `wander` it first opens another result of a
    search, which costs context and leaves the choice of a result to be learned from rewards; the choices are a
    pure function of the question.  Raises ValueError for a question without a walk.
    """
    facts = yield from _browse(question, wander)
    yield render_turn(f"{facts} Now I can answer.", expert_answer(question))


def guesser(question: Question) -> Policy:
    """Knows the answer and looks nothing up."""
    content = _sections("I remember the answer.", question.answer, [])
    yield render_turn("I know this one.", content)


def citer(question: Question) -> Policy:
    """Reads and cites the right pages and gives the right answer, but names nothing on the way to it."""
    yield from _browse(question)
    urls = list(dict.fromkeys(step["url"] for step in _walk(question)))
    links = " ".join(_citation(n, url) for n, url in enumerate(urls, 1))
    yield render_turn(
        "I have read everything.", _sections(f"These pages show it. {links}", question.answer, urls)
    )


def expert_answer(question: Question) -> str:
    """The final response with all rubrics filled in, each with its citation."""
    urls = list(dict.fromkeys(url for rubric in question.rubrics for url in rubric.support_urls[:1]))
    lines = []
    for rubric in question.rubrics:
        cited = [_citation(urls.index(url) + 1, url) for url in rubric.support_urls[:1]]
        lines.append(" ".join([_fill(rubric.text, question), *cited]))
    return _sections("\n".join(lines), question.answer, urls)


def _browse(question: Question, wander: float = 0.0) -> Generator[str, list[str], str]:
    """Search and open each step's page unless it is open already; returns the facts not yet said.

    The expert knows the address of a page that its search did not find: it bounds the reward, not the search.
    """
    facts, page = "", None
    chance = random.Random(question.id)
    for step in _walk(question):
        if step["url"] != page:
            page = step["url"]
            found = yield _tool_turn(f"{facts} {_need(step)}".strip(), SEARCH, query=step["query"])
            numbers = result_numbers(found[0])
            others = [number for url, number in numbers.items() if url != page]
            regret = ""
            if others and chance.random() < wander:
                yield _open_result(chance.choice(others))
                regret = "It is not."
            if page in numbers:
                yield _open_result(numbers[page], regret)
            else:
                yield _tool_turn(f"{regret} The page that I need is not listed.".strip(), OPEN, id=page)
            facts = ""
        facts = f"{facts} {_fact(step)}".strip()
    return facts


def _open_result(number: int, before: str = "") -> str:
    return _tool_turn(f"{before} Result {number} is the page that I need.".strip(), OPEN, id=number)


def result_numbers(output: str) -> dict[str, int]:
    """The number of each search result by its url."""
    return {url: int(number) for number, url in _RESULT.findall(output)}


def _walk(question: Question) -> list[dict[str, str]]:
    """The steps of the question with the names filled in."""
    if not question.metadata.get("walk"):
        raise ValueError(f"question {question.id} has no walk for a scripted policy to follow")
    steps: Sequence[Mapping[str, str]] = question.metadata["walk"]
    return [{key: _fill(value, question) for key, value in step.items()} for step in steps]


def _fill(text: str, question: Question) -> str:
    """Replace each placeholder by the entity's canonical name."""
    return PLACEHOLDER.sub(lambda match: question.entities[match[1]][0], text)


def _need(step: Mapping[str, str]) -> str:
    """What a search is for; a described anchor has no subject, only a clue."""
    if not step["subject"]:
        return f"I need the page about {step['query'].rstrip('?')}."
    return f"I need the {step['relation']} of {step['subject']}."


def _fact(step: Mapping[str, str]) -> str:
    """What the open page says about a step."""
    if not step["subject"]:
        return f"It is {step['object']}."
    return f"The {step['relation']} of {step['subject']} is {step['object']}."


def _tool_turn(thought: str, name: str, **arguments: Any) -> str:
    return render_turn(thought, calls=[ToolCall(name, arguments)])


def _citation(number: int, url: str) -> str:
    return f"[[{number}]({url})]"


def _sections(explanation: str, answer: str, urls: Sequence[str]) -> str:
    """The three sections that the prompt asks for; empty references end with their heading."""
    references = [f"[{number}] {url}" for number, url in enumerate(urls, 1)]
    parts = ["## Explanation with Citations", explanation, "## Exact Answer", answer, "## References"]
    return "\n".join([*parts, *references])
