"""The client against a real server that fails in every way we know of."""

import asyncio
import dataclasses
import logging
import shutil
import ssl
import subprocess

import aiohttp
import pytest
from asking import KEYS, REQUEST, asking, mind, run
from stub import Stub

from carr_jax.calls.errors import BudgetSpent, CallError, NoKeyLeft
from carr_jax.calls.ledger import Prices
from carr_jax.llm.endpoints import Endpoint


def test_a_reply_with_its_tokens_price_and_name(tmp_path):
    async def test():
        async with (
            Stub(mind) as stub,
            asking(tmp_path, Endpoint(stub.url, ("K1",), "m-there"), prices=Prices(1.0, 0.1, 10.0)) as client,
        ):
            reply = await client.complete(REQUEST, "p")
            assert (reply.text, reply.model, reply.finish) == ("hello", "stub-1", "stop")
            assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (100, 40, 10)
            assert reply.cost_usd == pytest.approx((60 * 1.0 + 40 * 0.1 + 10 * 10.0) / 1e6)
            assert not reply.cached
            assert stub.calls[0]["model"] == "m-there" and stub.keys == ["secret-1"]
            assert client.ledger.by_purpose["m", "p"].calls == 1

    run(test)


@pytest.mark.parametrize(
    "fault", "storm http_408 http_500 http_529 disconnect truncated not_json error_200 slow_then_cut".split()
)
def test_what_may_pass_is_asked_again(tmp_path, fault):
    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url)) as client:
            stub.script = [fault, fault]
            assert (await client.complete(REQUEST, "p")).text == "hello"
            assert stub.given == [fault, fault, "none"]
            # half of 1 s, half of 2 s; after a storm also the rest that the lane asked for
            assert [s for s in client.time.slept if s > 0] == [0.5, 1.0]
            stub.script = [fault] * 9
            with pytest.raises(CallError):
                await client.complete(REQUEST, "p")
            assert len(stub.given) == 3 + 8, "eight attempts"

    run(test)


@pytest.mark.parametrize("fault", ["http_400", "http_409", "redirect", "endless"])
def test_what_will_not_pass_fails_at_once(tmp_path, fault):
    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url, ("K1",))) as client:
            stub.script = [fault]
            with pytest.raises(CallError) as caught:
                await client.complete(REQUEST, "p")
            assert caught.value.kind == ("refused" if fault.startswith("http") else fault)
            assert stub.given == [fault], "and a redirect is not followed"
            assert client.time.slept == []
            assert (await client.complete(REQUEST, "p")).text == "hello"

    run(test)


def test_a_server_that_hangs_is_left_and_may_send_a_bill(tmp_path):
    async def test():
        async with (
            Stub(mind) as stub,
            asking(tmp_path, Endpoint(stub.url), request_s=0.2, attempts=2, prices=Prices(1.0)) as client,
        ):
            stub.script = ["hang", "hang"]
            with pytest.raises(CallError, match="no answer in 0.2 s"):
                await client.complete(REQUEST, "p")
            lost = client.ledger.by_purpose["m", "p (no reply)"]
            assert (lost.calls, lost.prompt_tokens) == (2, 32)  # 16 estimated for a prompt of one byte

    run(test)


def test_nobody_listens(tmp_path):
    async def test():
        async with asking(tmp_path, Endpoint("http://127.0.0.1:9/v1"), attempts=2) as client:
            with pytest.raises(CallError) as caught:
                await client.complete(REQUEST, "p")
            assert caught.value.kind == "unreachable" and not client.ledger.by_purpose, "and nobody bills"

    run(test)


def test_plain_http_is_no_tls(tmp_path):
    """A server without a certificate is not believed to be the one that was meant."""

    async def test():
        async with Stub(mind) as stub:
            url = stub.url.replace("http:", "https:")
            async with asking(tmp_path, Endpoint(url)) as client:
                with pytest.raises(CallError) as caught:
                    await client.complete(REQUEST, "p")
                assert (caught.value.kind, stub.calls, client.time.slept) == ("tls", [], [])  # it stays so


def test_a_handshake_that_is_cut_off_is_tried_again(tmp_path):
    async def hang_up(reader, writer):
        nonlocal connections
        connections += 1
        await reader.read(100)
        writer.close()

    connections = 0

    async def test():
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            async with asking(tmp_path, Endpoint(url), attempts=3) as client:
                with pytest.raises(CallError) as caught:
                    await client.complete(REQUEST, "p")
                assert (caught.value.kind, connections) == ("unreachable", 3)

    run(test)


def certificate(folder):
    """A certificate for 127.0.0.1 that nobody but itself vouches for."""
    if not shutil.which("openssl"):
        pytest.skip("makes a certificate with the program openssl, which is not here")
    made = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made.split(), *names], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_a_certificate_that_nobody_vouches_for_gets_no_key_and_no_second_try(tmp_path):
    async def test():
        async with Stub(mind, tls=certificate(tmp_path)) as stub:
            endpoint = Endpoint(stub.url, ("K1",))
            async with asking(tmp_path, endpoint, prices=Prices(1.0)) as client:
                with pytest.raises(CallError, match="(?i)certificate") as caught:
                    await client.complete(REQUEST, "p")
                assert (caught.value.kind, caught.value.retry, caught.value.billed) == ("tls", False, False)
                assert (stub.calls, stub.keys, client.time.slept) == ([], [], [])
                assert not client.ledger.by_purpose and "secret" not in str(caught.value)
            trusting = ssl.create_default_context(cafile=tmp_path / "cert.pem")
            async with aiohttp.ClientSession() as http:  # with the certificate in hand, all is well there
                url = f"{stub.url}/chat/completions"
                assert (await http.post(url, json={"max_tokens": 5}, ssl=trusting)).status == 200

    run(test)


# ----------------------------------------------------------------------------------------------- Retry-After


@pytest.mark.parametrize("header", ["30", "Tue, 14 Nov 2023 22:13:50 GMT"])  # 30 s after FakeTime's begin
def test_retry_after_is_honoured_by_all_who_wait(tmp_path, header):
    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url), concurrency=1) as client:
            stub.script, stub.retry_after = ["storm"], header
            await asyncio.gather(*(client.complete(REQUEST, "p") for _ in range(4)))
            assert stub.given == ["storm"] + ["none"] * 4, "the others waited instead of being refused too"
            assert client.time.t >= 30.0

    run(test)


def test_a_server_that_asks_to_wait_for_hours_fails_the_call(tmp_path):
    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url)) as client:
            stub.script, stub.retry_after = ["storm"], "7200"
            with pytest.raises(CallError, match="busy.*asks to wait 7200 s|busy.*asks to wait 71.. s"):
                await client.complete(REQUEST, "p")
            assert stub.given == ["storm"] and client.time.t < 120

    run(test)


# -------------------------------------------------------------------------------------------- keys and lanes


def test_a_refused_key_is_set_aside_and_never_shown(tmp_path, caplog):
    async def test():
        keys = ("secret-2",)
        async with Stub(mind, keys=keys) as stub, asking(tmp_path, Endpoint(stub.url, tuple(KEYS))) as client:
            for _ in range(5):
                assert (await client.complete(REQUEST, "p")).text == "hello"
            assert stub.keys.count("secret-1") <= 1 and stub.keys.count("secret-3") <= 1
            assert client.time.slept == [], "the next key needs no pause"
            stub.good_keys = ()
            with pytest.raises(NoKeyLeft) as caught:
                await client.complete(REQUEST, "p")
            assert "K1" in str(caught.value) and "secret" not in str(caught.value)

    with caplog.at_level(logging.DEBUG):
        run(test)
    assert "(K2)" in caplog.text and "(the key)" in caplog.text and "secret" not in caplog.text


def test_a_key_without_money_is_set_aside(tmp_path):
    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url, ("K1", "K2"))) as client:
            stub.script = ["quota"]
            await client.complete(REQUEST, "p")
            await client.complete(REQUEST, "p")
            assert stub.keys == ["secret-1", "secret-2", "secret-2"]

    run(test)


def test_one_forbidden_text_does_not_cost_the_key(tmp_path):
    """Some endpoints answer 403 to a text that they will not read."""

    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url, ("K1",))) as client:
            await client.complete(REQUEST, "p")
            stub.script = ["http_403"]
            with pytest.raises(CallError, match="forbidden"):
                await client.complete(REQUEST, "p")
            assert (await client.complete(REQUEST, "p")).text == "hello"
            stub.script = ["http_403"] * 3
            for kind in (CallError, CallError, NoKeyLeft):
                with pytest.raises(kind):
                    await client.complete(REQUEST, "p")

    run(test)


def test_a_dead_endpoint_costs_a_detour_only(tmp_path):
    async def test():
        async with Stub(mind) as stub:
            endpoints = (Endpoint("http://127.0.0.1:9/v1"), Endpoint(stub.url, (), "there"))
            async with asking(tmp_path, *endpoints) as client:
                for _ in range(20):
                    assert (await client.complete(REQUEST, "p")).text == "hello"
                assert len(client.time.slept) <= 5, "it is asked less and less often"
                assert {body["model"] for body in stub.calls} == {"there"}

    run(test)


def test_limits_of_all_and_of_each_key(tmp_path):
    async def most(tmp_path, **options):
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url, ("K1", "K2")), **options) as client:
            stub.pause_s = 0.01
            await asyncio.gather(*(client.complete(REQUEST, "p") for _ in range(12)))
            assert len(stub.calls) == 12
            assert min(stub.keys.count("secret-1"), stub.keys.count("secret-2")) >= 3, "keys share the work"
            return stub.most_in_flight

    async def test():
        assert await most(tmp_path, concurrency=3) == 3
        assert await most(tmp_path, concurrency=64, per_key=2) == 4

    run(test)


def test_waiting_in_our_own_queue_has_its_own_limit(tmp_path):
    async def test():
        limits = dict(concurrency=1, queue_s=0.1, request_s=30.0)
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url), **limits) as client:
            stub.script = ["hang"]
            first = asyncio.create_task(client.complete(REQUEST, "p"))
            await asyncio.sleep(0.05)
            with pytest.raises(CallError, match="queue"):
                await client.complete(REQUEST, "p")
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert (await client.complete(REQUEST, "p")).text == "hello", "the place is free again"

    run(test)


# ------------------------------------------------------------------------------------ cut off, and the budget


def test_a_reply_that_was_cut_off_gets_more_room_once(tmp_path):
    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url), prices=Prices(1.0)) as client:
            stub.finish = iter(["length", "stop", "length", "length", "length"])
            reply = await client.complete(REQUEST, "p")
            assert [body["max_tokens"] for body in stub.calls] == [50, 200]
            assert (reply.finish, reply.prompt_tokens, reply.cost_usd) == ("stop", 200, pytest.approx(120e-6))
            assert (await client.complete(REQUEST, "p")).finish == "length"
            assert len(stub.calls) == 4
            stub.script = ["none", "http_400"]  # no endpoint gives any room
            assert (await client.complete(REQUEST, "p")).finish == "length"

    run(test)


def test_the_budget_is_not_overspent_and_survives(tmp_path):
    """A call costs 110 of these dollars; at most (16 + 50) are held for it, as estimated from its text."""

    async def test():
        prices = Prices(1e6, 1e6, 1e6)
        async with Stub(mind) as stub:
            async with asking(tmp_path, Endpoint(stub.url), prices=prices, budget=500.0) as client:
                stub.pause_s = 0.01
                done = await asyncio.gather(
                    *(client.complete(REQUEST, "p") for _ in range(20)), return_exceptions=True
                )
                replies = [reply for reply in done if not isinstance(reply, Exception)]
                assert {type(e) for e in done if isinstance(e, Exception)} == {BudgetSpent}
                assert client.ledger.spent_usd == 110 * len(replies) == 110 * len(stub.calls)
            async with asking(tmp_path, Endpoint(stub.url), prices=prices, budget=500.0) as client:
                asked = len(stub.calls)
                with pytest.raises(BudgetSpent, match="of the budget of \\$500 are spent"):
                    await client.complete(REQUEST, "p")
                assert len(stub.calls) == asked
            async with asking(tmp_path, Endpoint(stub.url), prices=prices, budget=2000.0) as client:
                assert (await client.complete(REQUEST, "p")).text == "hello", "a larger budget goes on"

    run(test)


def test_with_estimates_above_the_truth_the_budget_holds_exactly(tmp_path):
    async def test():
        request = dataclasses.replace(REQUEST, max_tokens=200)  # at most 216, in truth 110
        prices = Prices(1e6, 1e6, 1e6)
        async with (
            Stub(mind) as stub,
            asking(tmp_path, Endpoint(stub.url), prices=prices, budget=1000.0) as client,
        ):
            done = await asyncio.gather(
                *(client.complete(request, "p") for _ in range(20)), return_exceptions=True
            )
            # 8 fit: after 7 calls 770 are spent and 216 more fit into 1000; after 8 they do not
            assert sum(not isinstance(d, Exception) for d in done) == 8
            assert client.ledger.spent_usd == 880.0
            assert stub.most_in_flight <= 4

    run(test)


def test_a_cancelled_call_frees_its_place_and_its_hold(tmp_path):
    async def test():
        limits = dict(concurrency=1, prices=Prices(1e6, 1e6, 1e6), budget=1000.0)
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url), **limits) as client:
            stub.script = ["hang"]
            call = asyncio.create_task(client.complete(REQUEST, "p"))
            while not stub.given:
                await asyncio.sleep(0.005)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert client.ledger.spent_usd == 16.0, "the bill for the prompt may come"
            for _ in range(8):
                await client.complete(REQUEST, "p")

    run(test)
