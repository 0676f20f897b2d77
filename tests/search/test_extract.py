"""From bytes to text: encodings, what is no text, HTML, PDF; expectations by hand."""

import asyncio
import io
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax.search.extract import NoText, cleaned, decoded, extract, is_binary
from carr_jax.search.inflate import Damaged, Inflater, TooLarge
from carr_jax.search.workers import Workers

SENTENCES = "The café of Ada Holm stood in Kemi, and nobody knew who had built it. " * 6
HTML = (
    "<!DOCTYPE html><html><head><title> Ada\n Holm </title><script>steal()</script></head><body>"
    f"<nav>Home | About</nav><article><h1>Ada</h1><p>{SENTENCES}</p><p><a href='/wiki/Kemi'>Kemi</a> is a town"
    f" and {SENTENCES}</p></article></body></html>"
)


def pdf(text):
    """A PDF of one sheet, written by hand."""
    stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out = io.BytesIO(b"")
    out.write(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % p for p in places))
    out.write(b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start)
    return out.getvalue()


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("café".encode(), "text/plain", "café"),
        (
            "café".encode(),
            "text/html; charset=iso-8859-1",
            "café",
        ),  # the header is wrong: these bytes are UTF-8
        ("café".encode("latin-1"), "text/plain; charset=ISO-8859-1", "café"),
        ("“x”".encode("cp1252"), "text/plain; charset=latin1", "“x”"),  # as browsers read that name
        ("東京".encode("shift_jis"), "text/html; charset=Shift_JIS", "東京"),
        ("東京".encode("iso2022_jp"), "text/html; charset=iso-2022-jp", "東京"),
        ("北京".encode("gbk"), 'text/html; charset="gb2312"', "北京"),
        (b"<meta charset=koi8-r>" + "дом".encode("koi8-r"), "text/html", "<meta charset=koi8-r>дом"),
        (b"\xff\xfe" + "дом".encode("utf-16-le"), "text/html; charset=utf-8", "дом"),
        (b"\xef\xbb\xbfcaf\xc3\xa9", "text/html; charset=koi8-r", "café"),
        (b"caf\xe9 and on", "text/plain; charset=utf-8", "caf\ufffd and on"),
        (b"caf\xe9", "text/plain; charset=no-such-thing", "caf\ufffd"),
        (b"abc", "text/plain; charset=base64", "abc"),  # a codec of Python that is no encoding of text
    ],
)
def test_encodings(body, content_type, text):
    assert decoded(body, content_type) == text


@given(st.binary(max_size=300), st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_bytes_and_no_header_raise(body, header):
    """TS-07: one bad byte never makes reading fail."""
    assert isinstance(decoded(body, f"text/html; charset={header}"), str)
    assert isinstance(is_binary(body), bool)


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_cleaning_is_done_once_and_for_all(text):
    once = cleaned(text)
    assert cleaned(once) == once
    assert not set(once) & {chr(c) for c in range(32) if c not in (9, 10)}
    once.encode("utf-8")


@pytest.mark.parametrize(
    "body",
    [
        b"\x89PNG\r\n\x1a\n" + b"a" * 50,
        b"GIF89a" + b"a" * 50,
        b"PK\x03\x04aaa",
        bytes(range(256)) * 4,
        b"a\0b" * 40,
    ],
)
def test_binary_is_told_by_its_bytes(body):
    for content_type in ("text/html", "text/plain; charset=utf-8", ""):
        with pytest.raises(NoText, match="binary"):
            extract(body, content_type, "https://a.test/")


def test_html_becomes_markdown_with_whole_links_and_without_menus_and_scripts():
    page = extract(HTML.encode(), "text/html; charset=utf-8", "https://a.test/wiki/Ada")
    assert page.title == "Ada Holm"
    assert "nobody knew who had built it" in page.text and "[Kemi](https://a.test/wiki/Kemi)" in page.text
    assert "steal()" not in page.text and "Home | About" not in page.text


def test_html_labelled_as_something_else_and_text_labelled_as_html():
    assert extract(HTML.encode(), "application/octet-stream", "https://a.test/").title == "Ada Holm"
    assert extract(b"just\r\nsome words", "text/plain", "https://a.test/").text == "just\nsome words"
    assert extract(b"just some words", "text/html", "https://a.test/").text == "just some words"


def test_a_page_without_a_main_part_gives_all_its_words():
    menu = b"<footer>one<script>2</script><b>three</b></footer>"
    body = b"<html><head><title>T</title><style>x{}</style></head><body>" + menu
    assert extract(body, "text/html", "https://a.test/").text.split() == ["one", "three"]


@pytest.mark.parametrize(
    "body", [b"", b"  \n", b"<html><body></body></html>", b"<html><script>x</script></html>"]
)
def test_nothing_to_read(body):
    with pytest.raises(NoText, match="empty"):
        extract(body, "text/html", "https://a.test/")


def test_the_text_layer_of_a_pdf():
    page = extract(pdf("Ada Holm was born in Kemi"), "text/html", "https://a.test/x.pdf")
    assert page.text == "Ada Holm was born in Kemi"
    with pytest.raises(NoText, match="extraction"):
        extract(b"%PDF-1.4\xb5 broken", "application/pdf", "https://a.test/")


# --------------------------------------------------------------------------------------------------- unpacking


def inflate(body, encoding, most=10_000, size=7):
    inflater = Inflater(encoding, most)
    for start in range(0, len(body), size):
        inflater.feed(body[start : start + size])
    return inflater.done()


def raw_deflate(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def gzipped(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


@given(st.binary(max_size=2_000), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_packed_bodies_come_back_whole(data, size):
    assert inflate(gzipped(data), "gzip", size=size) == data
    assert inflate(zlib.compress(data), "deflate", size=size) == data
    assert inflate(data, "", size=size) == data
    assert inflate(gzipped(data) + gzipped(b"more"), "x-gzip", size=size) == data + b"more"


def test_deflate_without_its_header():
    assert inflate(raw_deflate(b"abc" * 100), "deflate", size=1_000) == b"abc" * 100


def test_a_bomb_is_left_when_it_is_too_large():
    bomb = gzipped(bytes(50_000_000))
    assert len(bomb) < 60_000
    inflater = Inflater("gzip", 10_000)
    with pytest.raises(TooLarge):
        inflater.feed(bomb)
    assert len(inflater._body) <= 10_001
    with pytest.raises(TooLarge):
        inflate(b"x" * 10_001, "identity")


def test_damage_and_unknown_encodings_are_named():
    with pytest.raises(Damaged):
        inflate(gzipped(b"a" * 5_000)[:-12], "gzip")
    with pytest.raises(Damaged):
        inflate(b"not packed at all", "gzip", size=100)
    with pytest.raises(LookupError):
        Inflater("br", 10)


# ----------------------------------------------------------------------------------------------------- workers


def test_workers_read_and_survive_what_kills_them(monkeypatch):
    """A document that takes too long, and one whose worker dies, fail alone (TS-19: none stops the loop)."""

    async def all_of_it():
        with Workers(1, seconds=2.0) as workers:
            first = await workers.extract(HTML.encode(), "text/html", "https://a.test/")
            assert first.title == "Ada Holm"
            with pytest.raises(NoText, match="binary"):
                await workers.extract(b"\x89PNG", "text/html", "https://a.test/")
            (worker,) = workers._pool._processes.values()
            worker.kill()
            again = await workers.extract(b"words", "text/plain", "https://a.test/")
            assert again.text == "words"

    asyncio.run(all_of_it())
