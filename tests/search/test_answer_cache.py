"""The cache of the web's answers on disk: written together, read beside who writes."""

import asyncio
import sqlite3

from carr_jax.search.cache import AnswerCache


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_answers_that_come_at_once_are_all_kept_and_in_few_writes(tmp_path):
    cache = AnswerCache(tmp_path / "a.sqlite", "use")
    writes, put = [], cache._store.put

    def counted(*rows):
        writes.append(len(rows))
        put(*rows)

    cache._store.put = counted

    async def scenario():
        await asyncio.gather(*(cache.put(f"k{n}", "page", ["page", n]) for n in range(250)))
        return [await cache.get(f"k{n}", "") for n in range(250)]

    assert run(scenario()) == [["page", n] for n in range(250)]
    assert sum(writes) == 250 and len(writes) <= 3
    cache.close()


def test_who_waits_for_the_disk_is_answered_when_the_answer_is_on_it(tmp_path):
    """As another process, which looks right after each `put`, finds it; also one that came during a write."""
    cache = AnswerCache(tmp_path / "a.sqlite", "use")
    other = AnswerCache(tmp_path / "a.sqlite", "replay")

    async def one(n):
        await asyncio.sleep(n / 1000)
        await cache.put(f"k{n}", "page", ["page", n])
        return await other.get(f"k{n}", "")

    async def scenario():
        return await asyncio.gather(*map(one, range(30)))

    assert run(scenario()) == [["page", n] for n in range(30)]
    cache.close()
    other.close()


def test_reading_does_not_wait_for_another_process_that_writes(tmp_path):
    cache = AnswerCache(tmp_path / "a.sqlite", "use")
    long = ["page", "word " * 100_000]  # unpacked in a thread
    short = ["missing", ["no such page", "http_404"]]

    async def scenario():
        await cache.put("long", "page", long)
        await cache.put("short", "missing", short)
        writer = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)
        writer.execute("BEGIN EXCLUSIVE")
        waiting = asyncio.create_task(cache.put("late", "page", ["page", 1]))
        await asyncio.sleep(0.1)
        found = [await cache.get(key, "") for key in ("long", "short", "late")]
        done = waiting.done()
        writer.execute("COMMIT")
        writer.close()
        await waiting
        return found, done, await cache.get("late", "")

    assert run(scenario()) == ([long, short, None], False, ["page", 1])
    cache.close()
