"""The sections of the configuration that tell of services: what is searched, and who judges."""

from __future__ import annotations

from collections.abc import Mapping


def search_section() -> dict:
    """The section `search`."""
    return dict(
        source="corpus",  # what the tools reach: corpus (the index below, else the pages of `data`), web,
        # server (a tool server, launch/serve_tools.py), retrieval (a server that answers POST /retrieve)
        max_results=10,  # most results of one search
        snippet_chars=300,  # longest description of a result, in characters
        page_chars=10_000,  # how much of a page one open shows
        find_radius=200,  # characters shown on each side of a find hit
        find_limit=20,  # most hits of one find
        web=dict(  # the open web
            provider="serper",  # who searches: serper or serpapi
            search_url="",  # another address of it, such as a stand-in's; "" = its own
            search_keys="SERPER_API_KEY",  # environment variables with its keys, with commas between
            search_rate=0.0,  # calls a second that one key may make; 0 = no limit
            reader="jina",  # who fetches pages: jina (Jina Reader), or own (we do, and read them ourselves)
            reader_url="",  # another address of the reader; "" = its own
            reader_keys="JINA_API_KEY",  # environment variables with its keys; "" = none
            read_rate=0.0,  # as search_rate
            concurrency=64,  # most calls at a time to each of the two
            request_s=30.0,  # seconds that a call or a page may take, from when it is sent
            attempts=4,  # times that a call is sent before it counts as failed
            outage_s=600.0,  # seconds that calls wait for a service that fails them all; 0 = they fail at once
            search_usd=0.0,  # price of a search in US dollars,
            page_usd=0.0,  # and of a page by the reader
            budget_usd=0.0,  # most that searches and pages of a run may cost; then it saves and stops; 0 = any
            page_bytes=5_000_000,  # largest document that we fetch
            user_agent="carr_jax",  # what we call ourselves then; better with an address: "name (+https://...)"
            robots=True,  # leave pages that a site's robots.txt asks robots to leave
            ports=(80, 443),  # ports that pages may be fetched from
            private_hosts=(),  # hosts that may be private, by name: for laboratories, never on the open web
            retold_share=0.75,  # share of a question's words on a page that withholds it; 0 = quotes only
            withheld_hosts=(  # hosts that keep data sets, where questions stand beside their answers
                "huggingface.co",
                "hf.co",
                "hf-mirror.com",
                "kaggle.com",
                "modelscope.cn",
                "modelscope.ai",
                "opendatalab.com",
                "paperswithcode.com",
            ),
        ),
        cache=dict(  # of what the web answered
            mode="use",  # use, record (nothing expires, outages too), replay (nobody is asked), off
            path="",  # its file, which runs may share; "" = tools/answers.sqlite in the run folder
            search_days=7.0,  # days after which a search is too old,
            page_days=30.0,  # a page,
            missing_hours=1.0,  # and hours after which it is asked whether a missing page is still missing
        ),
        index=dict(
            path="",  # folder made by launch/build_index.py, searched instead of the pages of `data`
            dense_model="",  # the model folder it was built with, to search by meaning too; "" = words only
        ),
        server=dict(
            url="",  # address of the tool server, or of the retrieval server's /retrieve
            token="",  # environment variable with the tool server's token; "" = it wants none
            request_s=120.0,  # seconds that it may take for a call
            attempts=4,  # times that a call is sent before the tool counts as unavailable
        ),
    )


def judge_section() -> dict:
    """The section `judge`."""
    return dict(
        kind="exact",  # who judges: exact (gold names and pages, calls nobody), or llm (the model below)
        model="deepseek-chat",  # the judge's name, which is part of every reply in the cache
        endpoints=(),  # where it is asked: "URL", "URL KEYS" or "URL KEYS NAME"; KEYS are environment variables
        # with commas between, "-" for none; NAME is what the model is called there
        temperature=0.0,  # of the judge's sampling
        max_tokens=2048,  # most tokens of a reply; what is cut off is asked once more with four times as many
        tries=3,  # unusable replies after which a verdict is unknown
        votes=1,  # odd: more than half of so many draws must agree; at temperature 0 they may all be the same
        concurrency=64,  # most calls at a time, of all keys together
        key_concurrency=0,  # and of one key; 0 = no limit of its own
        queue_s=0.0,  # seconds that a call may wait for its turn here; 0 = as long as it takes
        request_s=120.0,  # seconds that an endpoint may take for a reply
        cache="",  # file of replies, which runs may share; "" = judge/replies.sqlite in the run folder
        replay=False,  # True: what is not in the cache stops the run, and nobody is asked
        budget_usd=0.0,  # most that the judge of a run may cost; then the run saves and stops; 0 = no limit
        price_prompt=0.0,  # US dollars for a million tokens: of prompts,
        price_cached=0.0,  # of prompts as far as the provider has them in its cache,
        price_completion=0.0,  # and of replies
        page_bytes=24_000,  # most that the judge reads of one cited page
        pages_bytes=200_000,  # and of all of them, or of a response
        at_least=0.0,  # share of right decisions in each step below which no run starts; 0 = start unmeasured
        calibration="runs/calibration/report.json",  # where launch/calibrate_judge.py wrote that share
    )


# ------------------------------------------------------------------------------------------------ validation


def search_checks(flat: Mapping) -> list[tuple[bool, str]]:
    """(whether it holds, what to say when it does not) for the section `search`."""
    elsewhere = flat["search.source"] != "corpus" or flat["search.index.path"]
    return [
        (
            not flat["search.web.budget_usd"] or flat["search.web.search_usd"] or flat["search.web.page_usd"],
            "config.search.web.budget_usd needs config.search.web.search_usd or config.search.web.page_usd",
        ),
        (
            flat["search.source"] != "web" or "sft.epochs" not in flat,
            "config.search.source=web is for reinforcement learning: the scripted expert knows `data` alone",
        ),
        (
            flat["search.web.user_agent"].isascii() and flat["search.web.user_agent"].isprintable(),
            "config.search.web.user_agent must be one line of ASCII",
        ),
        (
            bool(flat["search.web.ports"]) and all(0 < port < 65536 for port in flat["search.web.ports"]),
            "config.search.web.ports must be ports, such as (80, 443)",
        ),
        (
            flat["search.source"] not in ("server", "retrieval") or flat["search.server.url"],
            f"config.search.source={flat['search.source']} needs config.search.server.url",
        ),
        (
            flat["search.source"] == "corpus" or not flat["search.index.path"],
            "config.search.index.path is used only with config.search.source=corpus",
        ),
        (
            flat["search.index.path"] or not flat["search.index.dense_model"],
            "config.search.index.dense_model needs config.search.index.path",
        ),
        (
            flat["data.source"] == "world" or not elsewhere or flat["model.policy"] or flat["model.tokenizer"],
            "without pages in memory there is nothing to train a tokenizer on: give config.model.policy or "
            "config.model.tokenizer",
        ),
    ]


def judge_checks(flat: Mapping) -> list[tuple[bool, str]]:
    """(whether it holds, what to say when it does not) for the section `judge`."""
    if "judge.kind" not in flat:
        return []
    return [
        (
            flat["judge.kind"] == "exact" or flat["judge.endpoints"] or flat["judge.replay"],
            "config.judge.kind=llm needs config.judge.endpoints, or config.judge.replay=True",
        ),
        (
            flat["judge.votes"] % 2 == 1,
            "config.judge.votes must be odd: an even number may be a tie",
        ),
        (
            not flat["judge.budget_usd"] or flat["judge.price_prompt"] or flat["judge.price_completion"],
            "config.judge.budget_usd needs config.judge.price_prompt and config.judge.price_completion",
        ),
        (
            flat["judge.page_bytes"] >= 200 and flat["judge.pages_bytes"] >= 4000,
            "config.judge.page_bytes must be at least 200, and config.judge.pages_bytes at least 4000",
        ),
    ]
