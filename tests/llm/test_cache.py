"""The reply cache and the account book: what is on disk survives, what is not there is said."""

import json
import multiprocessing

import pytest

from carr_jax.calls.errors import NotRecorded, NotWritten
from carr_jax.calls.ledger import Ledger, Prices, Spent
from carr_jax.llm.cache import ReplyCache
from carr_jax.llm.messages import Reply
from carr_jax.records import InputError

REPLY = Reply('{"a": "\\u00e9 \ud800"}', "r", "", "stop", "m", 100, 40, 10, 0.5, 2.0)


def test_a_reply_comes_back_as_it_was_and_costs_nothing(tmp_path):
    cache = ReplyCache(tmp_path / "new" / "replies.sqlite")
    assert cache.get("k") is None
    cache.put("k", REPLY)
    again = ReplyCache(tmp_path / "new" / "replies.sqlite").get("k")
    assert again == Reply(REPLY.text, "r", "", "stop", "m", 100, 40, 10, 0.0, 0.0, cached=True)
    assert len(cache) == 1 and cache.get("other") is None


def test_replay_says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match="no replies to replay"):
        ReplyCache(tmp_path / "none.sqlite", replay=True)
    ReplyCache(tmp_path / "c.sqlite").put("k", REPLY)
    cache = ReplyCache(tmp_path / "c.sqlite", replay=True)
    assert cache.get("k").text == REPLY.text
    with pytest.raises(NotRecorded, match="c.sqlite has no reply"):
        cache.get("other")


def test_a_file_of_something_else_is_named(tmp_path):
    (tmp_path / "c.sqlite").write_bytes(b"gAN9cQAu" * 500)
    with pytest.raises(InputError, match="c.sqlite: cannot be used"):
        ReplyCache(tmp_path / "c.sqlite")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        ReplyCache(tmp_path / "file" / "c.sqlite")


def test_what_breaks_later_ends_the_run_instead_of_every_verdict(tmp_path):
    cache = ReplyCache(tmp_path / "c.sqlite")
    cache.close()
    for use in (lambda: cache.get("k"), lambda: cache.put("k", REPLY)):
        with pytest.raises(NotWritten, match="c.sqlite"):
            use()
    book = Ledger(tmp_path / "new" / "ledger.jsonl", Prices(1.0))
    (tmp_path / "new" / "ledger.jsonl").mkdir()
    with pytest.raises(NotWritten, match="ledger.jsonl: a call was paid"):
        book.record("p", "m", REPLY)
    assert book.spent_usd > 0, "and is counted"


def write_many(path, name):
    cache = ReplyCache(path)
    for i in range(100):
        cache.put(f"{name}{i}", Reply(f"{name}{i}"))
        assert cache.get(f"{name}{i}").text == f"{name}{i}"


def test_processes_share_it(tmp_path):
    path = tmp_path / "c.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_many, args=(path, name)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(ReplyCache(path)) == 200


# ------------------------------------------------------------------------------------------- the account book


def test_prices_are_for_a_million_tokens():
    assert Prices(0.28, 0.028, 0.42).cost(1_000_000, 500_000, 100_000) == pytest.approx(0.14 + 0.014 + 0.042)


def test_the_book_adds_up_by_model_and_purpose_and_is_read_again(tmp_path):
    path = tmp_path / "new" / "ledger.jsonl"
    book = Ledger(path, Prices(1.0, 0.5, 2.0))
    for purpose in ("outcome", "outcome", "support"):
        assert book.record(purpose, "m", REPLY) == pytest.approx(100e-6)
    book.record("outcome", "other", REPLY)
    expected = {
        ("m", "outcome"): Spent(2, 200, 80, 20, pytest.approx(200e-6)),
        ("m", "support"): Spent(1, 100, 40, 10, pytest.approx(100e-6)),
        ("other", "outcome"): Spent(1, 100, 40, 10, pytest.approx(100e-6)),
    }
    assert book.by_purpose == expected
    again = Ledger(path, Prices())  # other prices do not change what was paid
    assert again.by_purpose == expected and again.spent_usd == pytest.approx(400e-6)


def test_a_torn_line_is_cut_and_a_foreign_one_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path, Prices(1.0))
    book.record("p", "m", REPLY)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    book = Ledger(path, Prices(1.0))
    book.record("p", "m", REPLY)
    assert path.read_bytes() == 2 * whole
    for bad in (
        "{}",
        "[]",
        "x",
        json.dumps({"model": "m", "purpose": "p", "calls": "1"}),
        '{"model": 1, "z": 2}',
    ):
        path.write_bytes(whole + bad.encode() + b"\n")
        with pytest.raises(InputError, match="ledger.jsonl line 2 is no entry"):
            Ledger(path, Prices())
