"""The wire format: what is asked, what is understood, what is an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carr_jax.llm.endpoints import Endpoint, missing_keys, parse_endpoint
from carr_jax.llm.errors import ChatError
from carr_jax.llm.messages import Dialect, Reply, Request, error_message, parse_reply, request_body, retry_after
from carr_jax.records import InputError

REQUEST = Request((("system", "s"), ("user", "u")), 50, seed=3, schema={"type": "object"})


def answer(message, usage=None, **choice):
    return json.dumps({"model": "m1", "choices": [{"message": message, **choice}], "usage": usage}).encode()


def test_sampling_is_always_pinned():
    body = request_body(REQUEST, "m", Dialect())
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "temperature": 0.0,
        "seed": 3,
        "max_tokens": 50,
        "stream": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "strict": True, "schema": {"type": "object"}},
        },
    }
    assert "response_format" not in request_body(REQUEST, "m", Dialect("text"))
    assert "response_format" not in request_body(Request((("user", "u"),), 5), "m", Dialect())
    assert request_body(REQUEST, "m", Dialect(limit="max_completion_tokens"))["max_completion_tokens"] == 50


TOOL = {"name": "look", "description": "d", "parameters": {"type": "object"}}
CALLED = {"role": "assistant", "content": "", "reasoning_content": "t", "tool_calls": []}


def test_tools_and_whole_messages():
    asked = Request((("user", "u"), CALLED), 5, tools=(TOOL,))
    body = request_body(asked, "m", Dialect())
    assert body["tools"] == [{"type": "function", "function": TOOL}] and body["messages"][1] == CALLED
    silent = Dialect().after("Unknown parameter: 'messages[1].reasoning_content'", structured=False)
    assert str(silent) == "json_schema, max_tokens, no reasoning_content"
    assert "reasoning_content" not in request_body(asked, "m", silent)["messages"][1]
    assert asked.prompt_tokens > Request((("user", "u"),), 5).prompt_tokens
    assert asked.key("m") != Request((("user", "u"), CALLED), 5).key("m")


def test_what_was_asked_without_tools_keeps_its_address():
    address = "fbd1f57d46753db76c8a5bf4f613d8a7b3b95a6eb15de207caff664d2e08f95d"
    assert Request((("user", "u"),), 50).key("m") == address, "or every reply that was ever paid is lost"


def test_calls_are_read_in_both_forms_and_anything_else_is_garbled():
    calls = [
        {"function": {"name": "a", "arguments": '{"x": 1}'}},
        {"function": {"name": "b", "arguments": {"é": 2}}},
    ]
    reply = parse_reply(answer({"content": None, "tool_calls": [*calls, {"function": {"name": "c"}}]}), REQUEST)
    assert reply.calls == (("a", '{"x": 1}'), ("b", '{"é": 2}'), ("c", "{}"))
    for bad in ([{}], [{"function": {"name": 3}}], ["x"], {"function": {}}):
        with pytest.raises(ChatError, match="no completion"):
            parse_reply(answer({"content": "", "tool_calls": bad}), REQUEST)


def test_dialects_end():
    dialect = Dialect()
    seen = []
    while dialect:
        seen.append((dialect.response_format, dialect.limit))
        dialect = dialect.after("use max_completion_tokens", structured=True)
    assert seen == [
        ("json_schema", "max_tokens"),
        ("json_schema", "max_completion_tokens"),
        ("json_object", "max_completion_tokens"),
        ("text", "max_completion_tokens"),
    ]
    assert Dialect().after("too long", structured=False) is None


def test_the_key_holds_all_that_decides_the_reply():
    others = [
        Request((("system", "s"), ("user", "v")), 50, seed=3, schema={"type": "object"}),
        Request((("system", "su"), ("user", "")), 50, seed=3, schema={"type": "object"}),
        Request((("system", "s"), ("user", "u")), 51, seed=3, schema={"type": "object"}),
        Request((("system", "s"), ("user", "u")), 50, seed=4, schema={"type": "object"}),
        Request((("system", "s"), ("user", "u")), 50, 0.5, seed=3, schema={"type": "object"}),
        Request((("system", "s"), ("user", "u")), 50, seed=3),
    ]
    keys = {r.key("m") for r in [REQUEST, *others]} | {REQUEST.key("other")}
    assert len(keys) == 8
    assert REQUEST.key("m") == Request(**vars(REQUEST)).key("m")
    assert Request((("user", "\ud800"),), 1).key("m"), "text that is no Unicode can be asked about too"


@pytest.mark.parametrize(
    ("raw", "reply"),
    [
        (
            answer({"content": "hi"}, {"prompt_tokens": 7, "completion_tokens": 2}, finish_reason="stop"),
            Reply("hi", model="m1", prompt_tokens=7, completion_tokens=2),
        ),
        (
            answer(
                {"content": [{"type": "text", "text": "a"}, {"text": "b"}, 3], "reasoning_content": "r"},
                {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}},
                finish_reason="length",
            ),
            Reply("ab", "r", "", "length", "m1", 7, 5, 2),
        ),
        (
            answer(
                {"content": None, "reasoning": "r", "refusal": "no"},
                {"prompt_tokens": 4, "completion_tokens": 2, "prompt_cache_hit_tokens": 9},
            ),
            Reply("", "r", "no", "stop", "m1", 4, 4, 2),  # never more cached than there are
        ),
        # no usage: upper estimates, (1 + 1) // 2 + 16 of the prompt
        (answer({"content": "four"}), Reply("four", model="m1", prompt_tokens=17, completion_tokens=2)),
        (
            answer({"content": "four"}, {"prompt_tokens": -1, "completion_tokens": "x"}),
            Reply("four", model="m1", prompt_tokens=17, completion_tokens=2),
        ),
        (answer(None), Reply("", finish="empty", model="m1", prompt_tokens=17)),
        (b'{"choices": []}', Reply("", finish="empty", prompt_tokens=17)),
    ],
)
def test_replies(raw, reply):
    assert parse_reply(raw, REQUEST) == reply


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"<html>", b"[]", b"null", b'{"error": {"message": "no"}}', b'{"choices": [1]}',
        b'{"choices": {}}',
        b'{"choices": [{"message": "x"}]}', b'{"choices": [{"message": {"content": "a"}}], "usage": [1]}',
        b'{"choices": ' + b"[" * 100_000, b"\xff\xfe",
    ],
)  # fmt: skip
def test_what_is_no_completion_is_a_typed_error(raw):
    with pytest.raises(ChatError) as caught:
        parse_reply(raw, REQUEST)
    assert caught.value.kind == "garbled" and caught.value.retry and caught.value.billed


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(raw):
    with pytest.raises(ChatError):
        parse_reply(raw, REQUEST)
    assert error_message(raw)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"error": {"message": "too\\n long", "code": 1}}', "too long"),
        (b'{"error": "bad"}', "bad"),
        (b'{"detail": [{"loc": "x"}]}', "[{'loc': 'x'}]"),
        (b"plain", "plain"),
        (b"", "(empty)"),
        (b"[1]", "[1]"),
        (b"x" * 5000, "x" * 300),
    ],
)
def test_error_messages(raw, said):
    assert error_message(raw) == said


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("-3", 0.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:00:00 GMT", 0.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("Wed, 99 Oct 2015 07:28:00 GMT", None),
    ],
)
def test_retry_after(header, seconds):
    assert retry_after(header, now=1445412480.0) == seconds  # Wed, 21 Oct 2015 07:28:00 GMT


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("http://10.0.0.5:8000/v1/", Endpoint("http://10.0.0.5:8000/v1")),
        ("https://a.example K1,K2", Endpoint("https://a.example", ("K1", "K2"))),
        ("https://a.example K1 org/model-7", Endpoint("https://a.example", ("K1",), "org/model-7")),
        ("https://a.example - m", Endpoint("https://a.example", (), "m")),
    ],
)
def test_endpoints(text, endpoint):
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "", "a.example", "ftp://a.example", "https://", "https://a:0/v1", "https://a:99999", "https://[::1 K",
        "https://a.example K m x", "https://a.example?x=1", "https://u:secret@a.example",
        "https://a.example sk-secret", "https://a.example K,,L",
    ],
)  # fmt: skip
def test_what_is_no_endpoint(text):
    with pytest.raises(InputError) as caught:
        parse_endpoint(text)
    assert "secret" not in str(caught.value), "a key that stands in the wrong place is not printed"


def test_missing_keys():
    assert missing_keys(Endpoint("u", ("A", "B", "C")), {"A": "x", "B": " "}) == ["B", "C"]
