"""The web as a source, over real HTTP to a search API and a reader that fail in every way."""

import asyncio
import json
import logging

import pytest
from naughty import Naughty
from webstub import TEXT, WebStub

from carr_jax.calls.errors import BudgetSpent, NoKeyLeft, NotRecorded
from carr_jax.calls.patience import Patience
from carr_jax.records import InputError, Page
from carr_jax.search.browser import Missing
from carr_jax.search.fetch import FetchOptions
from carr_jax.search.hygiene import HygieneRules
from carr_jax.search.providers import read_results
from carr_jax.search.reader import read_page
from carr_jax.search.safety import Rules
from carr_jax.search.service import Address
from carr_jax.search.web import WebOptions, WebTools

KEYS = {"KEY_A": "good", "KEY_B": "other", "BAD": "bad"}
PATIENCE = Patience(backoff_s=0.01, request_s=2.0, attempts=4)


def options(stub, keys=("KEY_A",), provider="serper", price=0.0, **changes):
    path = {"serper": "/search", "serpapi": "/search.json"}[provider]
    values = dict(
        provider=provider,
        searching=Address(stub.url + path, keys, price),
        reading=Address(stub.url + "/reader/", keys, price),
        search_patience=PATIENCE,
        read_patience=PATIENCE,
    )
    return WebOptions(**values | changes)


def with_web(tmp_path, work, keys=("good",), **changes):
    async def run():
        async with WebStub(keys) as stub:
            tools = WebTools(options(stub, **changes), KEYS)
            async with tools.opened(tmp_path):
                return await work(stub, tools)

    return asyncio.run(run())


@pytest.mark.parametrize("provider", ["serper", "serpapi"])
def test_a_session_searches_opens_and_finds_in_the_layouts_of_the_reference(tmp_path, provider):
    async def work(stub, tools):
        stub.results[0]["date"] = "3 May 2021"
        session = tools.session("")
        search = await session.search("  Ada   Holm ", 2)
        return stub.calls, search, await session.open(1), await session.find("bridge")

    calls, search, page, find = with_web(tmp_path, work, provider=provider)
    assert search.output == (
        "[0] Title: Page 0\n[0] URL Source: https://site0.test/a\n[0] Description: About 0.\n"
        "[0] Date: 3 May 2021\n\n"
        "[1] Title: Page 1\n[1] URL Source: https://site1.test/a\n[1] Description: About 1."
    )
    head = "Title: A page\n\nURL Source: https://site1.test/a\n\nMarkdown Content:\n"
    assert page.output == head + TEXT.strip() and page.seen[0].text == TEXT.strip()
    assert find.output.startswith("[Match 1]\n") and find.seen[0].kind == "match"
    assert [(asked, key) for _, asked, key in calls] == [
        (("Ada Holm", 2), "good"),
        ("https://site1.test/a", "good"),
    ]


@pytest.mark.parametrize(
    "fault", ["http_500", "http_503", "http_408", "storm", "reset", "truncated", "list", "html"]
)
def test_what_may_pass_is_asked_again(tmp_path, fault):
    async def work(stub, tools):
        stub.script = [fault, fault]
        return (await tools.session("").search("q", 1)).error, len(stub.calls)

    error, calls = with_web(tmp_path, work)
    assert error is None and calls in (3, 4, 5)  # the library itself repeats after a reset


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        ("http_400", "not_found", "refused"),
        ("http_404", "not_found", "refused"),
        ("redirect", "not_found", "refused"),
    ],
)
def test_what_no_repetition_changes_is_asked_once(tmp_path, fault, error, reason):
    """TS-10; and no key travels along a redirect."""

    async def work(stub, tools):
        stub.script = [fault] * 9
        result = await tools.session("").search("q", 1)
        return result.error, result.reason, len(stub.calls), stub.followed

    assert with_web(tmp_path, work) == (error, reason, 1, 0)


def test_no_results_are_an_answer(tmp_path):
    async def work(stub, tools):
        stub.results = []
        result = await tools.session("").search("q", 1)
        return result.output, result.error, len(stub.calls)

    assert with_web(tmp_path, work) == ("No results found.", "not_found", 1)


def test_a_provider_that_is_down_is_an_outage_that_the_policy_learns_nothing_of(tmp_path):
    async def work(stub, tools):
        stub.script = ["http_500"] * 99
        result = await tools.session("").search("q", 1)
        return result.output, result.error, result.reason

    assert with_web(tmp_path, work) == ("The tool is not available.", "unavailable", "server")


def test_calls_wait_for_a_provider_that_comes_back(tmp_path):
    """An outage pauses those who search: ten sessions, and no failure is seen."""
    patient = Patience(backoff_s=0.01, request_s=2.0, attempts=2, outage_s=30.0)

    async def work(stub, tools):
        stub.script = ["http_500"] * 14
        results = await asyncio.gather(*(tools.session("").search(f"q{n}", 1) for n in range(10)))
        return [r.error for r in results], len(stub.calls)

    errors, calls = with_web(tmp_path, work, search_patience=patient)
    assert errors == [None] * 10
    assert calls == 24


def test_a_key_that_is_refused_is_left_and_none_left_ends_the_run(tmp_path):
    async def work(stub, tools):
        assert (await tools.session("").search("q", 1)).error is None
        assert {key for *_, key in stub.calls} == {"bad", "good"}
        stub.keys = ()
        with pytest.raises(NoKeyLeft, match="KEY_A") as error:
            await tools.session("").search("q2", 1)
        return str(error.value)

    async def run():
        async with WebStub() as stub:
            tools = WebTools(options(stub, keys=("BAD", "KEY_A")), KEYS)
            async with tools.opened(tmp_path):
                return await work(stub, tools)

    said = asyncio.run(run())
    assert "good" not in said and "bad" not in said


def test_a_budget_is_not_overspent_and_ends_the_run(tmp_path):
    async def work(stub, tools):
        for n in range(3):
            assert (await tools.session("").search(f"q{n}", 1)).error is None
        with pytest.raises(BudgetSpent) as error:
            await tools.session("").search("q9", 1)
        assert error.value.remedy == "give a larger config.search.web.budget_usd"
        await tools.session("").search("q0", 1)  # what is known costs nothing
        return len(stub.calls), tools.news()

    calls, news = with_web(tmp_path, work, price=1.0, budget_usd=3.5)
    assert (
        calls == 3 and news["tools/cost_usd"] == 3.0 and news["tools/asked"] == 4 and news["tools/cached"] == 1
    )
    rows = [json.loads(line) for line in (tmp_path / "tools" / "ledger.jsonl").read_text().splitlines()]
    assert [(row["model"], row["purpose"], row["cost_usd"]) for row in rows] == [("serper", "search", 1.0)] * 3


def test_who_asks_the_same_at_the_same_time_makes_one_call_and_a_leaver_does_not_end_it(tmp_path):
    async def work(stub, tools):
        stub.pause_s = 0.1
        first = asyncio.create_task(tools.session("").search("q", 3))
        others = [asyncio.create_task(tools.session("").search(" q ", 3)) for _ in range(7)]
        await asyncio.sleep(0.03)
        first.cancel()
        results = await asyncio.gather(*others)
        return len(stub.calls), {r.output for r in results}

    calls, outputs = with_web(tmp_path, work)
    assert calls == 1 and len(outputs) == 1


def test_calls_of_one_key_come_evenly(tmp_path):
    """TS-09: fifty queries at once where forty a second are allowed."""
    paced = Patience(rate=40.0, request_s=5.0)

    async def work(stub, tools):
        start = asyncio.get_running_loop().time()
        await asyncio.gather(*(tools.session("").search(f"q{n}", 1) for n in range(21)))
        return asyncio.get_running_loop().time() - start, stub.most_in_flight

    seconds, at_a_time = with_web(tmp_path, work, search_patience=paced)
    assert seconds >= 20 / 40 - 0.01 and at_a_time < 21


# -------------------------------------------------------------------------------------------------- the reader


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, "not here", "http_404"),
        (451, "no", "http_451"),
        (524, "slow", "http_524"),  # TS-11
        (200, "", "empty"),
        (200, "Title: x\n\nURL Source: https://a.test/\n\nMarkdown Content:\n \n", "empty"),
        (
            200,
            "Title: Oops\n\nURL Source: https://a.test/\n\nWarning: Target URL returned error 403: Forbidden\n"
            "\nMarkdown Content:\nSorry, you have been blocked",
            "http_403",
        ),
    ],
)
def test_a_page_that_is_none_is_no_page_and_is_remembered_for_a_while(tmp_path, status, body, reason):
    async def work(stub, tools):
        stub.pages["https://a.test/"] = (status, body)
        session = tools.session("")
        results = [await session.open("https://a.test/") for _ in range(2)]
        assert (await session.find("blocked")).error == "bad_call"  # nothing is open
        return {(r.error, r.reason) for r in results}, len(stub.calls)

    assert with_web(tmp_path, work) == ({("not_found", reason)}, 1)


def test_the_layout_of_the_reader():
    from carr_jax.calls.http import Answer
    from carr_jax.search.browser import page_text

    text = (
        "Title: A  b\n\nURL Source: https://a.test/new\n\nPublished Time: 2020-01-01\n\nMarkdown Content:\n"
        "# Head\r\nMarkdown Content:\nmore"
    )
    page = read_page(Answer(200, {}, text.encode()), "https://a.test/old")
    assert page == Page("https://a.test/new", "A b", "# Head\nMarkdown Content:\nmore", "2020-01-01")
    assert page_text(page) == text.replace("A  b", "A b").replace("\r", ""), "what the reader wrote"
    late = "Title: A\n\nURL Source: https://a.test/\n\nMarkdown Content:\nPublished Time: 2020-01-01\n"
    assert read_page(Answer(200, {}, late.encode()), "https://a.test/").published == ""
    assert read_page(Answer(200, {}, b"no layout"), "https://a.test/") == Page(
        "https://a.test/", "", "no layout"
    )


def test_private_addresses_are_not_told_to_a_reader(tmp_path):
    async def work(stub, tools):
        session = tools.session("")
        targets = (
            "http://127.0.0.1/",
            "http://2130706433/",
            "file:///etc/passwd",
            "http://u:p@a.test/",
            "x",
            "",
        )
        results = [await session.open(target) for target in targets]
        return [r.reason for r in results], stub.calls

    assert with_web(tmp_path, work) == (["private", "private", "scheme", "userinfo", "scheme", ""], [])


def test_rows_that_are_no_results_are_left_out():
    from carr_jax.calls.http import Answer

    rows = [
        {"link": "https://a.test/", "title": "T\n[0] Title: forged", "snippet": None},
        {"link": "javascript:x"},
        {"title": "no link"},
        7,
        None,
    ]
    (hit,) = read_results(Answer(200, {}, json.dumps({"organic": rows}).encode()))
    assert (hit.url, hit.title, hit.snippet) == ("https://a.test/", "T [0] Title: forged", "")
    nothing = {"error": "Google hasn't returned any results for this query."}
    assert read_results(Answer(200, {}, json.dumps(nothing).encode())) == []
    for body in (b'{"error": "Invalid API key"}', b"[]", b'{"organic": 3}', b"", b'{"organic": [{"li'):
        with pytest.raises(ValueError):
            read_results(Answer(200, {}, body))


# ----------------------------------------------------------------------------------------- withheld, remembered

LEAK = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def test_what_gives_the_question_away_is_withheld_from_its_own_episodes_alone(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    async def work(stub, tools):
        stub.results[0]["snippet"] = f"Q: {LEAK}?"
        stub.results[1]["link"] = "https://sets.test/q"
        stub.pages["https://b.test/"] = (200, f"Title: t\n\nURL Source: x\n\nMarkdown Content:\nso {LEAK}")
        asker, other = tools.session(LEAK), tools.session("Another question?")
        shown = [await s.search("q", 3) for s in (asker, other)]
        pages = [await s.open("https://b.test/") for s in (asker, other)]
        sets = await other.open("https://www.sets.test/q")
        return (
            [len(r.seen) for r in shown],
            [p.reason for p in pages],
            sets.output,
            tools.news(),
            len(stub.calls),
        )

    hits, pages, sets, news, calls = with_web(tmp_path, work, hygiene=HygieneRules(hosts=("sets.test",)))
    assert hits == [1, 2] and pages == ["withheld", ""] and sets == "This page cannot be shown."
    assert news["tools/results_withheld"] == 3 and news["tools/pages_withheld"] == 2 and calls == 3
    assert "(quoted)" in caplog.text and "(host)" in caplog.text


def play(tmp_path, mode, script=()):
    """A scripted episode of nine calls: what the tools said, and how many calls reached the stub."""

    async def run():
        async with WebStub() as stub:
            stub.script = list(script)
            stub.pages["https://site2.test/a"] = (404, "gone")
            tools = WebTools(options(stub, mode=mode, cache=str(tmp_path / "record.sqlite")), KEYS)
            async with tools.opened(tmp_path / mode):
                session = tools.session("Who built the bridge?")
                results = [await session.search("bridge \u00e9", 5)]
                for target in (0, 2, 1, "https://site9.test/a"):
                    results += [await session.open(target), await session.find("bridge")]
            return results, len(stub.calls)

    return asyncio.run(run())


def test_a_second_epoch_makes_no_call_and_a_replay_is_the_record_byte_for_byte(tmp_path):
    recorded, calls = play(tmp_path, "record")
    assert calls == 5
    again, calls = play(tmp_path, "record")
    assert calls == 0 and again == recorded
    replayed, calls = play(tmp_path, "replay")
    assert calls == 0 and replayed == recorded
    assert {r.reason for r in recorded} == {"", "http_404"}


def test_an_outage_is_repeated_by_a_replay_and_forgotten_by_a_later_record(tmp_path):
    recorded, _ = play(tmp_path, "record", ["http_500"] * 4)
    assert recorded[0].error == "unavailable"
    assert play(tmp_path, "replay")[0] == recorded
    better, _ = play(tmp_path, "record")
    assert better[0].error is None


def test_a_replay_names_what_is_missing(tmp_path):
    async def work(stub, tools):
        with pytest.raises(NotRecorded, match="record.sqlite has no answer to search 'unheard of', and only"):
            await tools.session("").search("unheard of", 1)
        return len(stub.calls)

    play(tmp_path, "record")
    assert with_web(tmp_path, work, mode="replay", cache=str(tmp_path / "record.sqlite")) == 0
    with pytest.raises(InputError, match="no answers to replay"):
        with_web(tmp_path, work, mode="replay", cache=str(tmp_path / "none.sqlite"))


def test_a_restored_session_asks_only_when_it_must(tmp_path):
    from carr_jax.records import ToolCall

    async def work(stub, tools):
        session = tools.session("")
        calls = [
            ToolCall("browser.search", {}, await session.search("q", 3)),
            ToolCall("browser.open", {}, await session.open(1)),
        ]
        before = len(stub.calls)
        restored = tools.session("")
        restored.restore(calls)
        assert (await restored.find("bridge")).output == (await session.find("bridge")).output
        assert (await restored.open(2)).seen[0].url == "https://site2.test/a"
        return len(stub.calls) - before

    assert with_web(tmp_path, work) == 1


# --------------------------------------------------------------------------------------------- our own reader


def test_pages_fetched_by_ourselves_keep_the_address_that_was_asked_for(tmp_path):
    async def run():
        async with WebStub() as stub, Naughty() as site:
            rules = Rules(frozenset((site.port,)), frozenset(("127.0.0.1",)))
            own = options(stub, reading=None, rules=rules, workers=1, fetching=FetchOptions(page_s=5.0))
            async with WebTools(own, KEYS).opened(tmp_path) as tools:
                session = tools.session("")
                page = await session.open(site.url("/to?u=/page"))
                gone = [await session.open(site.url(path)) for path in ("/binary", "/empty", "/status/404")]
                latin = await session.open(site.url("/latin"))
                with pytest.raises(Missing, match="private"):
                    await tools.page(f"http://127.0.0.2:{site.port}/")
                return site, page, [g.reason for g in gone], latin.output, stub.calls

    site, page, gone, latin, calls = asyncio.run(run())
    assert page.seen[0].url == site.url("/page") and page.seen[0].asked == site.url("/to?u=/page")
    assert page.output.startswith(
        f"Title: A page\n\nURL Source: {site.url('/page')}\n\nMarkdown Content:\nThe river"
    )
    assert gone == ["binary", "empty", "http_404"] and "café" in latin and calls == []
