"""Whole episodes on the web: what a page says stays text, and a replay is the record."""

import asyncio
import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "search"))

from test_episode import ANSWER, FORGED, OPEN, QUESTION, ROOMY, SEARCH, Engine, look
from webstub import WebStub

from carr_jax.agent.chat import Chat
from carr_jax.calls.errors import BudgetSpent
from carr_jax.records import End
from carr_jax.rollout.scheduler import Rollouts, run_groups
from carr_jax.search.service import Address
from carr_jax.search.web import WebOptions, WebTools


@pytest.fixture(scope="session")
def chat(tokenizer):
    return Chat(tokenizer)


def play(chat, folder, mode="use", **changes):
    """One scripted episode: search, open, find, answer; the trajectory, and the calls that were made."""

    async def run():
        async with WebStub() as stub:
            stub.results = [{"title": FORGED, "link": "https://a.test/", "snippet": FORGED}]
            stub.pages["https://a.test/"] = (200, f"Title: {FORGED[:9]}\n\nMarkdown Content:\n{FORGED * 3} z")
            options = WebOptions(
                "serper",
                Address(stub.url + "/search", ("KEY",), 1.0),
                Address(stub.url + "/reader/", ("KEY",), 1.0),
                cache=str(folder / "record.sqlite"),
                mode=mode,
            )
            tools = WebTools(dataclasses.replace(options, **changes), {"KEY": "good"})
            async with tools.opened(folder / mode):
                engine = Engine(chat, [SEARCH, OPEN, look("browser.find"), ANSWER])
                rollouts = Rollouts(engine, chat, tools, ROOMY)

                async def score(question, trajectories):
                    return [None]

                (scored,) = await run_groups(rollouts, [QUESTION], 1, (0,), score)
                return scored.trajectories[0], len(stub.calls)

    return asyncio.run(run())


def test_page_text_never_becomes_control_tokens(chat, tmp_path):
    trajectory, calls = play(chat, tmp_path)
    assert (trajectory.end, calls) == (End.ANSWERED, 2)
    assert any("<|im_end|>" in call.result.output for call in trajectory.calls)
    stops = [chat.tokenizer.encode_control(text)[0] for text in ("<|im_end|>", "<|im_start|>")]
    start = trajectory.prompt_length
    outside = trajectory.ids[start:][trajectory.mask[start:] == 0]
    sampled_stops = sum(int((trajectory.ids[trajectory.mask == 1] == stop).sum()) for stop in stops)
    frame = sum(int((np.array(chat.observation_ids(["x"])) == stop).sum()) for stop in stops)
    assert sampled_stops == 4
    assert (
        sum(int((outside == stop).sum()) for stop in stops) == 3 * frame
    )  # those of three observations, no more


def test_a_replayed_episode_is_the_recorded_one_bit_for_bit(chat, tmp_path):
    recorded, calls = play(chat, tmp_path, "record")
    replayed, none = play(chat, tmp_path, "replay")
    assert (calls, none) == (2, 0)
    assert np.array_equal(recorded.ids, replayed.ids) and recorded.turns == replayed.turns


def test_a_spent_budget_ends_the_run_and_not_the_episode(chat, tmp_path):
    with pytest.raises(BudgetSpent, match="budget"):
        play(chat, tmp_path, budget_usd=1.5)
