"""Hand-made trajectories and a judge that follows a script."""

import asyncio

import numpy as np

from carr_jax.records import (
    End,
    Question,
    Rubric,
    Seen,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
)
from carr_jax.rewards import carr, group
from carr_jax.rewards.citations import without_links


def trajectory(response="", seen=(), end=End.ANSWERED, thoughts=("",), sample=0):
    """A trajectory without tokens: `seen` are (url, text) pairs shown by one tool call."""
    pieces = tuple(Seen(url, "", "page", text) for url, text in seen)
    call = ToolCall("open", {}, ToolResult("", pieces))
    turns = tuple(Turn(0, 0, thought, "", (call,) if i == 0 else ()) for i, thought in enumerate(thoughts))
    return Trajectory(
        "q",
        sample,
        0,
        np.zeros(0, np.int32),
        np.zeros(0, np.int8),
        np.zeros(0, np.float32),
        np.zeros(0, np.int32),
        turns,
        end,
        response if end is End.ANSWERED else None,
    )


def answer(text, explanation=""):
    return f"## Explanation with Citations\n{explanation}\n\n## Exact Answer\n{text}\n\n## References\n"


class ScriptedJudge:
    """Answers with what it was given; a value that is an exception is raised, a Verdict returned as it is.

    `script` maps a response to (outcome, names, {rubric index: flag}).
    """

    def __init__(self, script):
        self.script, self.calls = script, []
        self.stated = {without_links(response): values for response, values in script.items()}

    def _say(self, step, response, value):
        self.calls.append((step, response))
        if isinstance(value, Exception):
            raise value
        return value if isinstance(value, Verdict) else Verdict(step, "ok", value)

    async def outcome(self, question, response):
        await asyncio.sleep(0)
        return self._say("outcome", response, self.script[response][0])

    async def identify(self, question, response):
        await asyncio.sleep(0)
        return self._say("identify", response, self.stated[response][1])

    async def support(self, question, names, indices, pages):
        await asyncio.sleep(0)
        response = next(iter(pages.values()))  # the scripted world shows each response as its own page
        flags = self.script[response][2]
        return self._say("support", response, [flags[i] for i in indices] if isinstance(flags, dict) else flags)


def scripted_trajectory(key, sample=0, end=End.ANSWERED, cite=True):
    """A trajectory whose response is `key` (a text with one URL) and whose only page holds that same text."""
    url = key.split()[-1]
    return trajectory(key, [(url, key)] if cite else [], end, sample=sample)


def question(entity_sets, **fields):
    rubrics = tuple(
        Rubric(f"fact {i} about " + " and ".join(f"<E{e}>" for e in ids) + ".")
        for i, ids in enumerate(entity_sets)
    )
    return Question("q", "Who?", "X", rubrics=rubrics, **fields)


def run(coroutine):
    return asyncio.run(coroutine)


def score(q, t, judge, mix="carr_paper", **options):
    return run(carr.score_trajectory(q, t, judge, mix, **options))


def score_group(q, ts, judge, mix, **options):
    return run(group.score_group(q, ts, judge, mix, **options))
