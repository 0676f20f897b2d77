"""The fetcher against servers that misbehave: each kind of fault ends in one stable answer."""

import asyncio
import time

import pytest
from naughty import PAGE, Naughty

from carr_jax.calls.patience import Timing
from carr_jax.search.browser import Missing, Outage
from carr_jax.search.fetch import Fetcher, FetchOptions
from carr_jax.search.safety import Rules

QUICK = FetchOptions(page_s=1.0, page_bytes=200_000)


async def no_sleep(seconds):
    await asyncio.sleep(0)


TIMING = Timing(sleep=no_sleep)


def names(**table):
    """A resolver of ours: each name gives its addresses in turn, the last one for ever."""
    asked = []

    async def lookup(host, port):
        asked.append(host)
        answers = table[host.replace(".", "_")]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    lookup.asked = asked
    return lookup


def with_site(work, options=QUICK, hosts=("127.0.0.1",), lookup=None):
    async def run():
        async with Naughty() as site:
            rules = Rules(frozenset((80, 443, site.port)), frozenset(hosts))
            more = {} if lookup is None else {"lookup": lookup}
            async with Fetcher(options, rules, timing=TIMING, **more) as fetcher:
                return await work(site, fetcher)

    return asyncio.run(run())


def outcome(path, **options):
    """The reason why a path of the site is not shown."""

    async def work(site, fetcher):
        with pytest.raises(Missing) as missing:
            await fetcher.fetch(site.url(path))
        return missing.value.reason, missing.value.sentence, site.paths()

    return with_site(work, **options)


def test_a_page_comes_with_its_address_and_nothing_of_ours_is_sent(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # TS-18: no proxy of the machine is used

    async def work(site, fetcher):
        for _ in range(2):
            document = await fetcher.fetch(site.url("/to?u=/page%3Fa=b") + "#part")
        return site, document

    site, document = with_site(work)
    assert document.url == site.url("/page?a=b") and document.body == PAGE.encode()
    assert document.content_type == "text/html; charset=utf-8"
    assert site.paths() == ["/to?u=/page?a=b", "/page?a=b"] * 2
    for _, headers in site.asked:
        assert headers["User-Agent"] == "carr_jax"
        assert not {"Cookie", "Referer", "Authorization"} & set(headers)


@pytest.mark.parametrize("path", ["/gzip", "/deflate"])
def test_packed_pages(path):
    async def work(site, fetcher):
        return (await fetcher.fetch(site.url(path))).body

    assert with_site(work) == PAGE.encode()


PRIVATE = [
    "http://127.0.0.2:{port}/page",
    "http://[::1]:{port}/page",
    "http://2130706434/",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("target", [*PRIVATE, "http://[::ffff:127.0.0.2]:{port}/", "http://169.254.169.254/"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_a_private_address_is_not_followed(target, status):
    """TS-01."""

    async def work(site, fetcher):
        with pytest.raises(Missing) as missing:
            await fetcher.fetch(site.url(f"/to/{status}?u={target.format(port=site.port)}"))
        return missing.value.reason, len(site.paths())

    reason, asked = with_site(work)
    assert reason in ("private", "scheme") and asked == 1


def test_an_address_behind_a_name_is_checked_each_time_it_is_looked_up():
    """TS-02: the answer changes between check and use; what was checked is what is connected to."""
    lookup = names(rebind_test=[["127.0.0.1"]])
    asked = outcome_at("http://rebind.test/page", lookup)
    assert asked == ("private", 0, ["rebind.test"])
    lookup = names(rebind_test=[["127.0.0.9"], ["8.8.8.8"]])  # bad first, good later: one look decides
    assert outcome_at("http://rebind.test/page", lookup) == ("private", 0, ["rebind.test"])
    lookup = names(rebind_test=[["8.8.8.8", "127.0.0.1"]])
    assert outcome_at("http://rebind.test/page", lookup) == ("private", 0, ["rebind.test"])


def outcome_at(url, lookup):
    async def work(site, fetcher):
        with pytest.raises(Missing) as missing:
            await fetcher.fetch(url)
        return missing.value.reason, len(site.paths()), lookup.asked

    return with_site(work, lookup=lookup)


def test_a_name_that_was_good_is_looked_at_again_for_a_new_connection():
    lookup = names(lab_test=[["127.0.0.1"]], rebind_test=[["127.0.0.1"]])

    async def work(site, fetcher):
        """The host that is named may be private; another name for the same place may not."""
        good = await fetcher.fetch(site.url("/page", "lab.test"))
        with pytest.raises(Missing, match="private"):
            await fetcher.fetch(site.url(f"/to?u=http://rebind.test:{site.port}/page", "lab.test"))
        return good.url, site.paths()

    url, paths = with_site(work, hosts=("lab.test",), lookup=lookup)
    assert url.startswith("http://lab.test:") and paths[0] == "/page" and len(paths) == 2


@pytest.mark.parametrize(
    ("path", "reason", "sentence", "calls"),
    [
        ("/nothing", "http_404", "There is no page at this address.", 1),
        ("/status/403", "http_403", "The site does not show this page.", 1),
        ("/status/401", "http_401", "The site does not show this page.", 1),
        ("/status/500", "http_500", "The site does not answer.", 2),
        ("/status/503", "http_503", "The site does not answer.", 2),
        ("/status/204", "http_204", "There is no page at this address.", 1),
        ("/nowhere", "http_302", "There is no page at this address.", 1),
        ("/loop", "redirects", "There is no page at this address.", 9),
        ("/endless", "too_large", "This page is too large.", 1),
        ("/bomb", "too_large", "This page is too large.", 1),
        ("/brotli", "encoding", "This page is not text.", 1),
        ("/cut", "broken", "The site does not answer.", 2),
        ("/gzip/cut", "broken", "The site does not answer.", 2),
        ("/slow", "timeout", "The site does not answer.", 1),
        ("/silent", "timeout", "The site does not answer.", 1),
    ],
)
def test_what_is_no_page_has_a_reason_and_a_stable_sentence(path, reason, sentence, calls):
    """TS-10: only what may pass is asked again; an error page is never a page."""
    options = FetchOptions(page_s=0.3 if reason == "timeout" else 5.0, page_bytes=200_000)
    found_reason, found_sentence, asked = outcome(path, options=options)
    assert (found_reason, found_sentence, len(asked)) == (reason, sentence, calls)


def test_a_storm_that_passes_and_one_that_lasts():
    async def work(site, fetcher):
        site.storm = 1
        assert (await fetcher.fetch(site.url("/storm"))).body == PAGE.encode()
        site.storm, site.retry_after = 9, "3600"
        before = len(site.paths())
        with pytest.raises(Missing, match="http_429"):
            await fetcher.fetch(site.url("/storm"))
        return len(site.paths()) - before

    assert with_site(work) == 1  # an hour is not waited for


def test_a_connection_that_is_reset_is_tried_once_more():
    """TS-17."""

    async def work(site, fetcher):
        site.left["reset"] = 1
        assert (await fetcher.fetch(site.url("/reset"))).body == PAGE.encode()
        site.left["reset"] = 9  # the library itself repeats on a connection that was kept
        with pytest.raises(Missing, match="broken"):
            await fetcher.fetch(site.url("/reset"))

    with_site(work)


def test_pages_of_one_host_wait_for_each_other_and_their_time_does_not_run():
    options = FetchOptions(page_s=0.6, per_host=1)

    async def work(site, fetcher):
        results = await asyncio.gather(
            *(fetcher.fetch(site.url("/silent")) for _ in range(2)),
            fetcher.fetch(site.url("/page")),
            return_exceptions=True,
        )
        return [getattr(r, "reason", "shown") for r in results]

    start = time.monotonic()
    assert with_site(work, options) == ["timeout", "timeout", "shown"]
    assert time.monotonic() - start >= 1.2


def test_one_dead_site_is_a_page_that_is_missing_and_a_dead_network_is_an_outage():
    """Many hosts fail and none answers: calls wait for the network, and in the end say that it is our side."""
    seconds = {"t": 0.0}

    async def sleep(duration):
        seconds["t"] += duration
        await asyncio.sleep(0)

    async def lookup(host, port):
        if host == "alive.test":
            return ["127.0.0.1"]
        raise OSError("temporary failure")

    async def run():
        async with Naughty() as site:
            rules = Rules(frozenset((80, site.port)), frozenset(("alive.test",)))
            timing = Timing(clock=lambda: seconds["t"], sleep=sleep)
            async with Fetcher(FetchOptions(outage_s=100.0), rules, lookup, timing) as fetcher:
                for _ in range(4):  # the same dead host, again and again
                    with pytest.raises(Missing, match="dns"):
                        await fetcher.fetch("http://dead.test/")
                for n in range(6):
                    with pytest.raises(Missing, match="dns"):
                        await fetcher.fetch(f"http://dead{n}.test/")
                assert seconds["t"] < 100
                with pytest.raises(Outage, match="network"):
                    await fetcher.fetch("http://dead9.test/")
                assert seconds["t"] >= 100
                with pytest.raises(Outage, match="network"):  # nobody waits again ...
                    await fetcher.fetch(site.url("/page", "alive.test"))
                seconds["t"] += 60  # ... until it is time to look
                assert (await fetcher.fetch(site.url("/page", "alive.test"))).body == PAGE.encode()
                with pytest.raises(Missing, match="dns"):
                    await fetcher.fetch("http://dead.test/")

    asyncio.run(run())


# --------------------------------------------------------------------------------------------- what sites ask


RULES = "User-agent: *\nDisallow: /to\n\nUser-agent: carr_jax\nUser-agent: other\nDisallow: /page\n"


def test_a_page_that_robots_may_not_fetch_is_not_fetched_and_its_site_is_asked_once():
    async def work(site, fetcher):
        site.robots, reasons = RULES, []
        for path in ("/page", "/to?u=/page", "/page?a=b"):
            with pytest.raises(Missing) as missing:
                await fetcher.fetch(site.url(path))
            reasons.append((missing.value.reason, missing.value.sentence))
        await asyncio.gather(*(fetcher.fetch(site.url(f"/gzip?n={n}")) for n in range(3)))
        return reasons, [path for path, _ in site.asked]

    reasons, asked = with_site(work)
    assert reasons == [("robots", "The site does not show this page.")] * 3
    assert asked == ["/robots.txt", "/to?u=/page", *(f"/gzip?n={n}" for n in range(3))]


def test_robots_can_be_left_out():
    async def work(site, fetcher):
        site.robots = RULES
        return (await fetcher.fetch(site.url("/page"))).body, [path for path, _ in site.asked]

    assert with_site(work, FetchOptions(robots=False)) == (PAGE.encode(), ["/page"])


@pytest.mark.parametrize(
    ("said", "reason"), [(404, ""), (403, ""), (302, ""), (503, "http_503"), (429, "http_429")]
)
def test_a_site_that_does_not_say_what_robots_may_fetch(said, reason):
    """RFC 9309 2.3.1: without a file everything may be fetched, while a site is in trouble nothing."""

    async def work(site, fetcher):
        site.robots = said
        try:
            return (await fetcher.fetch(site.url("/page"))).body, site.paths()
        except Missing as missing:
            return missing.reason, site.paths()

    found, asked = with_site(work)
    assert found == (reason or PAGE.encode()) and ("/page" in asked) == (not reason)


def test_robots_txt_of_a_private_address_is_not_asked_for():
    async def work(site, fetcher):
        site.robots = RULES
        with pytest.raises(Missing) as missing:
            await fetcher.fetch(site.url("/gzip", "127.0.0.2"))
        return missing.value.reason, site.asked

    assert with_site(work) == ("private", [])
