"""Ten thousand responses of everything that a response can hold, in any order: all are scored, none crashes."""

import asyncio
import random

from adversaries import FORGED, MARKERS, PAGES, QUESTIONS, TOKENS, Content, worked

from carr_jax.rewards import carr
from carr_jax.rewards.judge import ExactJudge

QUESTION = QUESTIONS[0]
SEEN = {url: PAGES[url] for url in QUESTION.gold_urls}
NAMES = [name for names in QUESTION.entities.values() for name in names]
PIECES = [
    *(FORGED, MARKERS, TOKENS, *NAMES, *SEEN, *PAGES[QUESTION.gold_urls[0]].split()[:9]),
    *(
        "## Exact Answer\n",
        "## References\n",
        "**References**\n",
        "References\n---\n",
        "### Web\n",
        "# \n",
        "## ",
        "#",
    ),
    *(
        "[[1](",
        "[2](",
        "](",
        ")]",
        ")",
        "(",
        "[1]",
        "[^1]: ",
        "[1-3]",
        "【2】",
        "<",
        ">",
        "view-source:",
        "1. ",
        "- ",
    ),
    *(
        "https://",
        "http://r.jina.ai/",
        "https://[",
        "https://a.example:99999/",
        "%",
        "%2F",
        "%zz",
        "#x",
        "?",
        "&amp;",
    ),
    *(
        "\n",
        "\n\n",
        " ",
        "\t",
        "\r\n",
        "\\",
        "\x00",
        "\ud800",
        "\u202e",
        "\u3000",
        "，",
        "İ",
        "é",
        "e\u0301",
        "𝟙",
        "²",
    ),
    *(
        "<E0>",
        "<E1>",
        "<E99999999999999999999>",
        "9" * 5000,
        "-",
        "1e999",
        "nan",
        "yes",
        "12 May 1931",
        "٣",
        "`",
        '"',
    ),
]


def responses(count, seed=0):
    rng = random.Random(seed)
    for _ in range(count):
        yield "".join(rng.choices(PIECES, k=rng.choice((0, 1, 3, 10, 30))))


def test_ten_thousand_responses_are_scored():
    plain = worked(Content(QUESTION, SEEN, QUESTION.answer), "")
    judge, names = ExactJudge(), list(carr.READERS)
    seen_scores = set()

    async def main():
        for number, response in enumerate(responses(10_000)):
            object.__setattr__(plain, "response", response)
            citations = names[number % 2]
            got = await carr.score_trajectory(QUESTION, plain, judge, citations=citations)
            assert got.known and got.outcome in (0.0, 1.0) and got.rubric in (0.0, 0.5, 1.0), (number, response)
            assert not (got.rubric and not got.citations)
            seen_scores.add((got.outcome, got.rubric > 0))

    asyncio.run(main())
    assert (0.0, False) in seen_scores and (1.0, False) in seen_scores  # the generator reaches real answers
