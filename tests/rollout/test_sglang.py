"""What is said to a server and what is made of its answers, one at a time."""

import asyncio
import base64
import dataclasses
import json
import math

import numpy as np
import pytest
from standin import StandIn

from carr_jax.records import Sampling
from carr_jax.rollout.messages import (
    RouteShape,
    ServerBadReply,
    ServerRefused,
    ServerUnreachable,
    json_text,
    parse_reply,
    request_body,
)
from carr_jax.rollout.sglang import SGLangServer, open_http

pytestmark = pytest.mark.usefixtures("compile_quickly")


def answer(ids=(5, 6, 7), **meta):
    """An answer of SGLang 0.5.23 to a prompt of four tokens, as bytes."""
    known = {
        "id": "a",
        "finish_reason": {"type": "length", "length": len(ids)},
        "prompt_tokens": 4,
        "weight_version": "3",
        "output_token_logprobs": [[-0.5, i, None] for i in ids],
        "completion_tokens": len(ids),
        "cached_tokens": 2,
        "weight_versions": [{"version": "3", "start": 0, "end": len(ids)}],
    }
    meta = {key: value for key, value in (known | meta).items() if value != "left out"}
    return json.dumps({"output_ids": list(ids), "meta_info": meta}).encode()


def parsed(raw, routes=None):
    return parse_reply("server", raw, 4, routes)


def test_an_answer_becomes_ids_logprobs_and_the_version_of_each_token():
    spans = [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 3}]
    reply = parsed(answer(weight_versions=spans))
    assert (reply.ids, reply.logprobs) == ((5, 6, 7), (-0.5, -0.5, -0.5))
    assert (reply.versions, reply.exact, reply.finish, reply.cached_tokens) == (
        ("2", "3", "3"),
        True,
        "length",
        2,
    )
    old = parsed(answer(weight_versions="left out"))
    assert (old.versions, old.exact) == (("3", "3", "3"), False)


def test_missing_logprobs_are_nan_and_never_zero():
    some = parsed(answer(output_token_logprobs=[[-0.5, 5, None], [None, 6, None], [-0.5, 7, None]]))
    assert math.isnan(some.logprobs[1]) and some.logprobs[::2] == (-0.5, -0.5)
    named = parsed(answer(output_token_logprobs=[[math.nan, i, None] for i in (5, 6, 7)]))
    assert all(map(math.isnan, named.logprobs)), "no JSON to the letter, but Python's writer makes it"
    none = parsed(answer(output_token_logprobs="left out"))
    assert none.ids == (5, 6, 7) and all(map(math.isnan, none.logprobs))


def test_an_abort_before_the_first_token_is_an_answer_without_tokens():
    """From SGLang's waiting queue: no prompt_tokens, and spans of nothing."""
    meta = {
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "prompt_tokens": "left out",
    }
    reply = parsed(answer((), **meta, weight_versions=[{"version": "3", "start": 0, "end": 0}]))
    assert (reply.ids, reply.finish, reply.versions) == ((), "abort", ())


@pytest.mark.parametrize(
    "raw",
    [
        answer(output_token_logprobs=[[-0.5, 5, None]]),
        answer(output_token_logprobs=[[-0.5, 5, None], [-0.5, 6, None], [-0.5, 8, None]]),
        answer(completion_tokens=4),
        answer(prompt_tokens=5),
        answer(weight_versions=[{"version": "3", "start": 0, "end": 2}]),
        answer(finish_reason={"type": "tired"}),
        answer(finish_reason=None),
        answer()[:-20],
        b"",
        b"[]",
        b"<html>502 Bad Gateway</html>",
    ],
    ids=str,
)
def test_an_answer_that_contradicts_itself_is_an_error(raw):
    with pytest.raises(ServerBadReply, match="server"):
        parsed(raw)


def packed(routes):
    return base64.b64encode(np.asarray(routes, "<i4").tobytes()).decode()


def test_routed_experts_have_a_row_for_every_token_but_the_last():
    taken = np.arange(6 * 2 * 3).reshape(6, 2, 3)  # of 4 + 3 tokens
    shape = RouteShape(layers=2, experts=3)
    np.testing.assert_array_equal(parsed(answer(routed_experts=packed(taken)), shape).routes, taken)
    later = parsed(answer(routed_experts=packed(taken[4:])), RouteShape(2, 3, start=4)).routes
    np.testing.assert_array_equal(later, taken[4:])
    short = parsed(answer(routed_experts=packed(taken[:5])), shape).routes
    assert short.shape == (6, 2, 3) and (short[5] == -1).all()
    assert parsed(answer(), shape).routes is None
    for wrong in (packed(np.zeros((7, 2, 3))), packed(np.zeros(5)), "no base64!"):
        with pytest.raises(ServerBadReply):
            parsed(answer(routed_experts=wrong), shape)


def test_a_request_says_everything_that_could_change_the_distribution():
    ids = np.array([1, 2])
    asked = request_body(ids, Sampling(9, (7, 8), 0.7, seed=5), "rid", True, RouteShape(2, 3, 4))
    body = json.loads(json_text(asked))
    params = body.pop("sampling_params")
    assert body == {
        "input_ids": [1, 2],
        "return_logprob": True,
        "stream": False,
        "rid": "rid",
        "return_routed_experts": True,
        "routed_experts_start_len": 4,
    }
    expected = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    expected |= {"stop": None, "stop_token_ids": [7, 8], "ignore_eos": False, "no_stop_trim": True}
    expected |= {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    expected |= {"max_new_tokens": 9, "sampling_seed": 5}
    assert expected.items() <= params.items()
    plain = request_body([1], Sampling(9, ()), "rid", False, None)
    assert plain["sampling_params"]["ignore_eos"] and "sampling_seed" not in plain["sampling_params"]


# ------------------------------------------------------------------------------------------------ over HTTP


def talk(folder, scenario, **options):
    async def run():
        async with StandIn(folder, **options) as server, open_http() as http:
            return await scenario(server, SGLangServer(server.url, http))

    return asyncio.run(run())


def test_capabilities_say_what_a_run_has_to_do_without(folders):
    async def scenario(server, client):
        return await client.capabilities()

    full = talk(folders / "moe", scenario)
    assert (full.context, full.weight_version) == (96, "default") and not full.shortcomings()
    poor = talk(folders / "dense", scenario, deterministic=False, updates=False)
    assert not (poor.seeds or poor.routes or poor.updates) and len(poor.shortcomings()) == 2
    assert len(dataclasses.replace(poor, moe=True).shortcomings()) == 3


def test_errors_have_types_and_say_which_server(folders):
    sampling = Sampling(3, ())

    async def scenario(server, client):
        server.faults.fail = 1
        with pytest.raises(ServerBadReply, match="500: out of memory"):
            await client.generate([1], sampling, "a", False)
        server.faults.cut = 1
        with pytest.raises(ServerBadReply, match="no JSON"):
            await client.generate([1], sampling, "a", False)
        with pytest.raises(ServerRefused, match="longer than the model's context"):
            await client.generate([1] * 96, sampling, "a", False)
        with pytest.raises(ServerRefused, match="no model.safetensors"):
            await client.update_weights(folders, "1", 5.0)
        server.faults.hang_all = True
        with pytest.raises(ServerUnreachable, match="no answer in 0 s"):
            await client.weight_version(limit_s=0.05)
        await server.die()
        with pytest.raises(ServerUnreachable, match=server.url):
            await client.generate([1], sampling, "a", False)
        await server.begin()

    talk(folders / "dense", scenario)


def test_a_proxy_of_the_system_is_not_used(folders, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario(server, client):
        return await client.weight_version()

    assert talk(folders / "dense", scenario) == "default"
