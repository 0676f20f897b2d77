"""What an endpoint takes is found out from its refusals, once, and remembered."""

import asyncio
import logging

import pytest
from asking import REQUEST, STRUCTURED, asking, mind, run
from hypothesis import given
from hypothesis import strategies as st
from stub import Stub

from carr_jax.calls.errors import CallError
from carr_jax.calls.ledger import Prices
from carr_jax.llm.endpoints import Endpoint
from carr_jax.llm.messages import Dialect

NO_TEMPERATURE = {
    "temperature": "Unsupported value: 'temperature' does not support 0.0 with this model. "
    "Only the default (1) value is supported."
}
NO_SEED = {"seed": "Unrecognized request argument supplied: seed"}
NEITHER = dict.fromkeys(
    ("temperature", "seed"), "[{'loc': ['body', 'seed']}, {'loc': ['body', 'temperature']}]"
)


@pytest.mark.parametrize(
    ("formats", "tried"),
    [
        (("json_schema", "json_object"), ["json_schema"]),
        (("json_object",), ["json_schema", "json_object"]),
        ((), ["json_schema", "json_object", None]),
    ],
)
def test_structured_output_as_far_as_it_goes(tmp_path, formats, tried):
    async def test():
        async with Stub(mind, formats=formats) as stub, asking(tmp_path, Endpoint(stub.url)) as client:
            await client.complete(STRUCTURED, "p")
            await client.complete(STRUCTURED, "p")
            asked = [body.get("response_format", {}).get("type") for body in stub.calls]
            assert asked == [*tried, tried[-1]], "found out once"

    run(test)


def test_a_refusal_for_another_reason_teaches_nothing(tmp_path):
    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url)) as client:
            stub.script = ["http_400"] * 3
            with pytest.raises(CallError, match="refused"):
                await client.complete(STRUCTURED, "p")
            await client.complete(STRUCTURED, "p")
            assert stub.calls[-1]["response_format"]["type"] == "json_schema"

    run(test)


def test_the_other_name_of_the_token_limit(tmp_path):
    async def test():
        async with (
            Stub(mind, limit_field="max_completion_tokens") as stub,
            asking(tmp_path, Endpoint(stub.url)) as client,
        ):
            await client.complete(REQUEST, "p")
            assert stub.calls[-1]["max_completion_tokens"] == 50 and "max_tokens" not in stub.calls[-1]

    run(test)


@pytest.mark.parametrize(
    ("refuses", "limit", "kept", "refused"),
    [
        (NO_TEMPERATURE, "max_tokens", {"seed"}, 1),
        (NO_SEED, "max_tokens", {"temperature"}, 1),
        (NEITHER, "max_tokens", set(), 1),
        (NO_TEMPERATURE | NO_SEED, "max_completion_tokens", set(), 3),  # as models that reason
    ],
)
def test_sampling_that_is_refused_is_left_out_and_said_once(tmp_path, caplog, refuses, limit, kept, refused):
    async def test():
        async with (
            Stub(mind, refuses=refuses, limit_field=limit) as stub,
            asking(tmp_path, Endpoint(stub.url, ("K1",)), prices=Prices(1.0)) as client,
        ):
            reply = await client.complete(STRUCTURED, "p")
            assert len(stub.calls) == 1 + refused
            assert stub.calls[-1].keys() & {"temperature", "seed"} == kept
            assert stub.calls[-1]["response_format"]["type"] == "json_schema", "which was not refused"
            for name in ("temperature", "seed"):
                assert (f"no {name}" in reply.dialect) == (name not in kept)
            assert reply.dialect.startswith(f"json_schema, {limit}")
            await client.complete(STRUCTURED, "p")
            assert len(stub.calls) == 2 + refused, "found out once"
            assert client.ledger.by_purpose["m", "p"].calls == 2, "and nobody bills a refusal"

    with caplog.at_level(logging.WARNING):
        run(test)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "from now on asked with json_schema" in said[0] and "secret" not in said[0]


def test_each_endpoint_has_a_dialect_of_its_own(tmp_path):
    async def test():
        async with Stub(mind, refuses=NO_TEMPERATURE) as strict, Stub(mind) as free:
            endpoints = (Endpoint(strict.url), Endpoint(free.url))
            async with asking(tmp_path, *endpoints, per_key=1) as client:
                strict.pause_s = free.pause_s = 0.02
                await asyncio.gather(*(client.complete(REQUEST, "p") for _ in range(4)))
            assert "temperature" not in strict.calls[-1]
            assert free.calls and all("temperature" in body for body in free.calls)

    run(test)


@pytest.mark.parametrize(
    ("refusal", "dialect"),
    [
        ("model doubao-seed-1-6 does not support this format", Dialect("json_object")),
        ("temperatures of 0 are low", Dialect("json_object")),
        ("'temperature' and response_format cannot go together", Dialect("json_object")),
        ("invalid 'temperature'", Dialect(sampling=("seed",))),
        ("use max_completion_tokens, and no temperature", Dialect(limit="max_completion_tokens")),
    ],
)
def test_a_field_is_known_by_its_whole_name(refusal, dialect):
    assert Dialect().after(refusal, structured=True) == dialect


def test_the_address_of_an_endpoint_is_no_refusal(tmp_path):
    """An error names the endpoint, and this one is called as a field is."""

    async def test():
        async with Stub(mind) as stub, asking(tmp_path, Endpoint(stub.url, ("seed",))) as client:
            stub.script = ["http_400"]
            with pytest.raises(CallError, match=r"\(seed\).*too long"):
                await client.complete(REQUEST, "p")
            assert len(stub.calls) == 1

    run(test)


@given(st.lists(st.sampled_from(["temperature", "seed", "response_format", "max_completion_tokens", "x"])))
def test_whatever_is_refused_there_is_an_end(words):
    dialect, steps = Dialect(), 0
    while dialect is not None:
        dialect, steps = dialect.after(" ".join(words), structured=True), steps + 1
    assert steps <= 6
