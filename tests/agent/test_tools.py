import asyncio
import logging

import pytest

from carr_jax.agent.tools import MAX_RESULTS, TOOLS, run_call
from carr_jax.records import UNAVAILABLE, ToolResult


class Recorder:
    """A session that answers with what it was asked."""

    async def search(self, query, num):
        return ToolResult(repr(("search", query, num)))

    async def open(self, id):
        return ToolResult(repr(("open", id)))

    async def find(self, pattern):
        return ToolResult(repr(("find", pattern)))


class Broken:
    async def search(self, query, num):
        raise ConnectionError("secret key 123")


def run(name, arguments, session=None):
    return asyncio.run(run_call(session or Recorder(), name, arguments))


@pytest.mark.parametrize(
    ("name", "arguments", "asked"),
    [
        ("browser.search", {"query": "a"}, ("search", "a", 10)),
        ("browser.search", {"query": "a", "num": 3}, ("search", "a", 3)),
        ("browser.search", {"query": "a", "num": 10.0}, ("search", "a", 10)),
        ("browser.search", {"query": "a", "num": "4"}, ("search", "a", 4)),
        ("browser.search", {"query": "a", "num": None}, ("search", "a", 10)),
        ("browser.search", {"query": "a", "num": 0}, ("search", "a", 1)),
        ("browser.search", {"query": "a", "num": -5}, ("search", "a", 1)),
        ("browser.search", {"query": "a", "num": 10**9}, ("search", "a", MAX_RESULTS)),
        ("browser.search", {"query": 1871}, ("search", "1871", 10)),
        ("browser.search", {"query": "a\ud83d"}, ("search", "a?", 10)),
        ("browser.open", {"id": 3}, ("open", 3)),
        ("browser.open", {"id": 3.0}, ("open", 3)),
        ("browser.open", {"id": " 3 "}, ("open", 3)),
        ("browser.open", {"id": "https://a.example/3"}, ("open", "https://a.example/3")),
        ("browser.open", {"id": "9" * 5000}, ("open", "9" * 5000)),
        ("browser.find", {"pattern": "x y"}, ("find", "x y")),
        ("browser.find", {"pattern": 14}, ("find", "14")),
    ],
)
def test_arguments_reach_the_session(name, arguments, asked):
    assert run(name, arguments) == ToolResult(repr(asked))


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("browser.search", {"query": ""}, "query"),
        ("browser.search", {"query": True}, "query"),
        ("browser.search", {"query": ["a"]}, "query"),
        ("browser.search", {}, "query"),
        ("browser.search", {"query": "a", "num": "many"}, "num"),
        ("browser.search", {"query": "a", "num": 2.5}, "num"),
        ("browser.search", {"query": "a", "num": float("inf")}, "num"),
        ("browser.search", {"query": "a", "num": True}, "num"),
        ("browser.open", {"id": None}, "id"),
        ("browser.open", {"id": False}, "id"),
        ("browser.open", {"id": {}}, "id"),
        ("browser.open", {"id": " "}, "id"),
        ("browser.find", {"pattern": None}, "pattern"),
        ("browser.close", {}, "unknown tool"),
    ],
)
def test_a_wrong_argument_is_the_policys_mistake(name, arguments, said):
    result = run(name, arguments)
    assert result.error == "bad_call" and said in result.output and result.output.startswith("Error: ")


def test_an_exception_is_unavailable_and_its_cause_only_logged(caplog):
    with caplog.at_level(logging.WARNING):
        result = run("browser.search", {"query": "a"}, Broken())
    assert result == ToolResult(UNAVAILABLE, error="unavailable", reason="internal")
    assert "secret key 123" in caplog.text


def test_cancellation_is_not_swallowed():
    class Cancelled:
        async def search(self, query, num):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run("browser.search", {"query": "a"}, Cancelled())


def test_schemas_declare_the_arguments_of_the_wire_format():
    declared = {t["name"]: (set(t["parameters"]["properties"]), t["parameters"]["required"]) for t in TOOLS}
    assert declared == {
        "browser.search": ({"query", "num"}, ["query"]),
        "browser.open": ({"id"}, ["id"]),
        "browser.find": ({"pattern"}, ["pattern"]),
    }
