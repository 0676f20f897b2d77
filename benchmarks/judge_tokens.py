"""What the judge of a step reads, beside what the public reference's judge would.

    python benchmarks/judge_tokens.py      (a quarter of a minute, any machine)

Groups of eight attempts at a question, 30 % of them right.  An attempt has 31 searches, 10 opened pages and 4
finds; its response has some 1,180 characters of prose and cites five pages, of which it opened two, with 22,500
characters: close to the one trajectory that the reference publishes (1,163 and 25,662).  Siblings meet the same
pages, the well known ones more often; half of all search results say what the page itself says.

    reference    three calls for every sample: outcome, identification, support.  Citations and the layout of
                 pages are those of `rewards.reference`; of its instructions only the lengths stand here
    ours         what `rewards.group` asks through `rewards.llm_judge`, whose client answers by a script

A token is four characters, on both sides.  `fresh` are the tokens without the prefix that an earlier call of
the group had, in units of 64 as providers keep them; calls made at once count as one after the other.
"""

import asyncio
import functools
import itertools
import json
import os
import random
import re
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rewards import messages

from carr_jax.calls.flights import Flights
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.messages import Reply
from carr_jax.rewards import group, reference
from carr_jax.rewards.history import from_history
from carr_jax.rewards.llm_judge import LLMJudge

GROUPS, SIBLINGS, RIGHT, ENTITIES, RUBRICS = 24, 8, 0.3, 7, 10
SEARCHES, RESULTS, OPENED, FINDS, POOL = 31, 10, 10, 4, 400
UNIT, CHARS = 64, 4
KINDS = ("calls", "tokens", "fresh")
# Characters of the reference's fixed texts: before its first block, and all together.
FIXED = {"outcome": (145, 1152), "identify": (1492, 1655), "support": (1499, 1591)}


# ----------------------------------------------------------------------------------------------- trajectories


@functools.cache
def page(question, number):
    """A page of the question's world: 2,000 to 30,000 characters that no other page has."""
    rng = random.Random(f"{question} {number}")
    words = [f"{rng.choice('bcdfgklmnprst')}{rng.choice('aeiou')}{rng.randrange(999)}" for _ in range(60)]
    return " ".join(rng.choice(words) for _ in range(rng.choice((400, 1000, 2000, 6000))))


@functools.cache
def description(question, number):
    """What a search says of a page: its begin, or as often words that the page does not have."""
    return page(question, number)[:300] if number % 2 else page(f"about {question}", number)[:300]


def address(question, number):
    return f"https://site{number % 37}.example.org/{question}/articles/page-{number}"


def met(rng):
    """A page that an attempt comes across: the well known ones come often."""
    return min(int(rng.paretovariate(0.7)) - 1, POOL - 1)


def excerpt(rng, text, length):
    start = rng.randrange(max(len(text) - length, 1))
    return text[start : start + length]


def attempt(question, number):
    """A row of the reference: an attempt at a question."""
    rng = random.Random(f"attempt {question} {number}")
    calls, seen, opened = [], [], []
    for k in range(SEARCHES):
        found = list(dict.fromkeys(met(rng) for _ in range(3 * RESULTS)))[:RESULTS]
        seen += found
        blocks = (
            f"[{i}] Title: Title of {p}\n[{i}] URL Source: {address(question, p)}\n"
            f"[{i}] Description: {description(question, p)}"
            for i, p in enumerate(found)
        )
        calls.append(("browser.search", {"query": f"query {k}"}, "\n\n".join(blocks)))
        if k % 3 == 0 and len(opened) < OPENED:
            opened.append(rng.choice(found))
            calls.append(("browser.open", {"id": found.index(opened[-1])}, opened_text(question, opened[-1])))
        if k % 8 == 0:
            hits = (excerpt(rng, page(question, opened[-1]), 400) for _ in range(5))
            text = "\n\n".join(f"[Match {m}]\n{hit}" for m, hit in enumerate(hits, 1))
            calls.append(("browser.find", {"pattern": "fox"}, text))
    right = rng.random() < RIGHT
    cited = dict.fromkeys([*rng.sample(opened, 2), *rng.sample(seen, 3)])
    asked = f"Which {question}? " + "clue " * 60
    environment = {"search_forbidden_strs": [asked], "rubrics": rubrics(question)}
    said = final(rng, right, number, [address(question, p) for p in cited])
    return {"history": messages(calls, said), "label": "right answer", "remote_env_info": environment}


def opened_text(question, p):
    head = f"Title: Title of {p}\n\nURL Source: {address(question, p)}\n\nMarkdown Content:\n"
    return (head + page(question, p))[:10_000]


def rubrics(question):
    """Sentences of some ninety characters that join each entity to an earlier one."""
    rng = random.Random(f"rubrics {question}")
    pairs = [(rng.randrange(e), e) for e in range(1, ENTITIES)]
    pairs += [(0, rng.randrange(1, ENTITIES)) for _ in range(RUBRICS - len(pairs))]
    fact = "was for many years in close relation of the kind that question tells, to"
    return [f"<E{a}> {fact} <E{b}>." for a, b in pairs]


def final(rng, right, number, urls):
    """A response of some 1,200 characters of prose; right ones name more of the entities."""
    care = rng.betavariate(5, 2) if right else rng.betavariate(4, 3)
    answer = "right answer" if right else f"wrong answer {number}"
    proof = "as the page that is cited here says in its first lines; and so it was found."
    said = [f"E0 is {answer}.", "This is what was looked at. " * 17]
    said += [f"The entity E{e} is name {e}, {proof}" for e in range(1, ENTITIES) if rng.random() < care]
    links = [f"[[{i}]({url})]" for i, url in enumerate(urls, 1)]
    body = " ".join(f"{text} {link}" for text, link in itertools.zip_longest(said, links, fillvalue=""))
    references = "\n".join(urls)
    return f"## Explanation with Citations\n{body}\n\n## Exact Answer\n{answer}\n\n## References\n{references}"


# ---------------------------------------------------------------------------------------------------- counting


@dataclass
class Count:
    """The calls of one side, in order, by group."""

    prompts: dict = field(default_factory=lambda: defaultdict(list))
    tokens: Counter = field(default_factory=Counter)
    fresh: Counter = field(default_factory=Counter)
    calls: Counter = field(default_factory=Counter)

    def add(self, owner, step, text):
        known = max((common(text, earlier) for earlier in self.prompts[owner]), default=0)
        known = known // (UNIT * CHARS) * UNIT
        self.prompts[owner].append(text)
        self.calls[step] += 1
        self.tokens[step] += len(text) / CHARS
        self.fresh[step] += len(text) / CHARS - known


def common(a, b):
    return len(os.path.commonprefix((a, b)))


class Script:
    """A client without a network, which believes what it reads."""

    model = "script"

    def __init__(self, count):
        self.count, self.flights, self.owner = count, Flights(), ""

    async def complete(self, request, purpose):
        self.count.add(self.owner, purpose, "".join(text for _, text in request.messages))
        return Reply(json.dumps(said(request.messages[1][1])))


def said(user):
    blocks = dict(re.findall(r"\[\[begin (\w+) \w{12}\]\]\n(.*?)\n\[\[end", user, re.DOTALL))
    code = {"code": re.search(r'its "code" is "(\w+)"', user)[1]}
    if "ACCEPTED" in blocks:
        answer = re.search(r"## Exact Answer\n(.+)", blocks["RESPONSE"])[1]
        return code | {"final_answer": answer, "reason": "", "correct": answer == blocks["ACCEPTED"]}
    if "STATEMENTS" in blocks:
        names = dict(re.findall(r"E(\d) is ([\w ]+)", blocks["RESPONSE"]))
        return code | {f"E{e}": names.get(str(e)) for e in range(ENTITIES)}
    proof = {"pages": ["P1"], "quote": "", "supported": True}
    return code | {name: proof for name in blocks if name.startswith("S")}


def ask_as_the_reference(count, owner, question, trajectory):
    """The three prompts of a sample, with blanks for its fixed texts."""
    reading = reference.read(trajectory)
    facts = "\n".join(f"C{i}. {rubric.text}" for i, rubric in enumerate(question.rubrics, 1))
    names = dict(re.findall(r"E(\d) is ([\w ]+)", reading.stated))
    filled = [re.sub(r"<E(\d)>", lambda m: names.get(m[1], "?"), r.text) for r in question.rubrics]
    statements = "\n".join(f"S{i}. {text}" for i, text in enumerate((f for f in filled if "?" not in f), 1))
    bodies = {
        "outcome": f"{question.question}{reading.answer}{question.answer}",
        "identify": f"{question.question}{facts}{reading.answer}",
        "support": f"{reference.context(reading.pages.values())}{statements}",
    }
    for step, body in bodies.items():
        before, fixed = FIXED[step]
        count.add(owner, step, step[0] * before + body + "." * (fixed - before))


async def measure(mix, groups=GROUPS):
    """(ours, the reference's, share of right answers)."""
    ours, theirs = Count(), Count()
    with tempfile.TemporaryDirectory() as folder:
        script = Script(ours)
        judge = LLMJudge(script, ReplyCache(Path(folder) / "replies.sqlite"))
        right = 0
        for q in range(groups):
            read = [from_history(attempt(q, i), sample=i) for i in range(SIBLINGS)]
            script.owner = q
            scores = await group.score_group(read[0][0], [t for _, t in read], judge, mix)
            assert all(score.known for score in scores)
            right += sum(score.outcome for score in scores)
            for question, trajectory in read:
                ask_as_the_reference(theirs, q, question, trajectory)
    return ours, theirs, right / groups / SIBLINGS


def show(mix, ours, theirs, right):
    """A table of both sides and their quotient, for a sample."""
    print(f"\n{mix}: {right:.0%} right, {GROUPS} groups of {SIBLINGS}; ours / the reference's = quotient")
    print(f"{'':12}{'calls':>24}{'tokens':>24}{'fresh':>24}")
    for step in (*FIXED, "all"):
        print(f"{step:12}" + "".join(cell(step, getattr(ours, k), getattr(theirs, k)) for k in KINDS))


def cell(step, ours, theirs):
    a, b = ((side.total() if step == "all" else side[step]) / GROUPS / SIBLINGS for side in (ours, theirs))
    digits = 0 if b > 10 else 2
    return f"{a:9.{digits}f} /{b:6.{digits}f} = {a / b:4.2f}"


if __name__ == "__main__":
    for chosen in ("carr_released", "carr_paper"):
        show(chosen, *asyncio.run(measure(chosen)))
