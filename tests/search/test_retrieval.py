"""The client of retrieval servers, against one on loopback."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from carr_jax.records import UNAVAILABLE
from carr_jax.search.retrieval import Retrieval

DOCUMENTS = [
    {"id": "12", "contents": '"Kemi"\nKemi is a town. Its mayor is Bo Lind.'},
    {"docid": "13", "url": "https://w.example/oulu", "title": "Oulu", "text": "Oulu is a town on the coast."},
]


def played(answer, *calls, **options):
    """The results of calls to one session over a server that answers so, and what it was asked."""
    asked = []

    async def handle(request):
        asked.append(await request.json())
        said = answer(len(asked))
        return said if isinstance(said, web.Response) else web.json_response(said)

    async def scenario():
        app = web.Application()
        app.router.add_post("/retrieve", handle)
        async with TestServer(app) as server:
            tools = Retrieval(str(server.make_url("/retrieve")), **options)
            session = tools.session("Who?")
            results = [await getattr(session, name)(*arguments) for name, *arguments in calls]
            return results

    return asyncio.run(scenario()), asked


@pytest.mark.parametrize("scored", [True, False])
def test_documents_become_results_and_pages(scored):
    rows = [{"document": d, "score": 1.5} if scored else d for d in DOCUMENTS]
    calls = (
        ("search", "mayor of Kemi", 2),
        ("open", 0),
        ("find", "Bo Lind"),
        ("open", 1),
        ("open", "w.example/x"),
    )
    (search, kemi, found, oulu, missing), asked = played(lambda n: {"result": [rows]}, *calls)
    assert asked == [{"queries": ["mayor of Kemi"], "topk": 2, "return_scores": True}]
    assert search.output.startswith("[0] Title: Kemi\n[0] URL Source: 12\n[0] Description: ")
    assert "mayor is Bo Lind." in search.seen[0].text
    assert kemi.output.startswith("Title: Kemi\n\nURL Source: 12\n\n") and "[Match 1]" in found.output
    assert oulu.seen[0].url == "https://w.example/oulu" and missing.reason == "no_page"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda n: {"result": []}, "bad_reply"),
        (lambda n: {"result": [[3]]}, "bad_reply"),
        (lambda n: {"result": [[{"document": {"contents": "no id"}}]]}, "bad_reply"),
        (lambda n: [], "bad_reply"),
        (lambda n: web.Response(text="<html>"), "bad_reply"),
        (lambda n: web.Response(status=500), "http_500"),
        (lambda n: web.Response(status=404), "http_404"),
    ],
)
def test_what_is_no_answer_is_an_outage(answer, reason, monkeypatch):
    monkeypatch.setattr("carr_jax.search.posting._PAUSE_S", 0.001)
    (result,), asked = played(answer, ("search", "x", 2), attempts=2)
    assert (result.output, result.error, result.reason) == (UNAVAILABLE, "unavailable", reason)
    assert len(asked) == (2 if reason == "http_500" else 1)


def test_a_server_that_comes_back_is_asked_again(monkeypatch):
    monkeypatch.setattr("carr_jax.search.posting._PAUSE_S", 0.001)
    answers = {1: web.Response(status=503)}
    (result,), asked = played(lambda n: answers.get(n, {"result": [DOCUMENTS]}), ("search", "x", 2))
    assert result.error is None and len(asked) == 2
