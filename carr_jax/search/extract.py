"""From the bytes of a document to title and text: HTML as markdown, text as it is, the text layer of a PDF.

What a document is, its bytes say, not the type it was sent with.  Runs in the workers of `workers.py`: it is
work for a processor, on input that anybody may have written.
"""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
from dataclasses import dataclass

from carr_jax.records import InputError

_MOST_CHARS = 1_000_000  # of a page; a book has fewer
_MOST_SHEETS = 300  # of a PDF
_LOOKED_AT = 4096  # bytes that show what a document is
_TITLE_CHARS = 300

_MAGIC = (b"\x89PNG", b"GIF87a", b"GIF89a", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b", b"\x7fELF")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Python's names for what no page is written in.
_NO_ENCODINGS = ("undefined", "idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7")
_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.IGNORECASE)
_HEADER = re.compile(r"charset\s*=\s*[\"']?\s*([\w:.-]{1,40})", re.IGNORECASE)
_HTML = re.compile(
    r"\s*(?:<!--.{0,2000}?-->\s*)*<(?:!doctype\s+html|html|head|body|meta|title|div|p|article)\b", re.I | re.S
)
# Controls that mean nothing in a text; newline and tab stay.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*\n")
_BAD_BYTES = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})


class NoText(Exception):
    """A document without text to show; `reason` is "binary", "empty" or "extraction"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Text:
    """Title ("" when there is none) and text of a document, both cleaned."""

    title: str
    text: str


def extract(body: bytes, content_type: str, url: str) -> Text:
    """What a person would read of a document.  Raises NoText.

    Raises InputError when a library of the extra `web` is not installed.
    """
    if not body.strip():
        raise NoText("empty")
    if b"%PDF-" in body[:1024]:
        title, text = _pdf(body)
    elif is_binary(body):
        raise NoText("binary")
    else:
        written = decoded(body, content_type)
        title, text = _html(written, url) if _is_html(written, content_type) else ("", written)
    text = cleaned(text)[:_MOST_CHARS]
    if not text:
        raise NoText("empty")
    return Text(" ".join(cleaned(title).split())[:_TITLE_CHARS], text)


def is_binary(body: bytes) -> bool:
    """Whether these are no characters in any encoding of the web (TS-07): a known begin, or odd bytes."""
    head = body[:_LOOKED_AT]
    if head.startswith(tuple(bom for bom, _ in _BOMS)):
        return False
    if head.startswith(_MAGIC):
        return True
    strange = len(head) - len(head.translate(None, _BAD_BYTES))
    return strange > len(head) // 100  # a single stray byte is no reason


def decoded(body: bytes, content_type: str) -> str:
    """The characters of a document; what no encoding explains becomes U+FFFD, and nothing raises.

    A byte order mark comes first, then what is whole UTF-8 anyway, then what the header and the document say.
    No statistics: they cost seconds on large pages (TS-08).
    """
    for bom, name in _BOMS:
        if body.startswith(bom):
            return body.decode(name, "replace")
    said = (_HEADER.search(content_type), _META.search(body[:_LOOKED_AT]))
    names = [m[1] if isinstance(m[1], str) else m[1].decode("ascii", "replace") for m in said if m]
    for name in ["utf-8", *names] if not body.isascii() else names:
        try:
            return body.decode(_web_name(name))
        except (LookupError, ValueError):
            continue
    for name in names:
        if _known(name):
            return body.decode(_web_name(name), "replace")
    return body.decode("utf-8", "replace")


def _web_name(name: str) -> str:
    """The encoding that browsers use for a name.  Raises LookupError for what is no encoding of characters."""
    name = codecs.lookup(name).name
    if name in _NO_ENCODINGS or not getattr(codecs.lookup(name), "_is_text_encoding", True):
        raise LookupError(name)
    return {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}.get(name, name)


def _known(name: str) -> bool:
    try:
        return bool(_web_name(name))
    except LookupError:
        return False


def cleaned(text: str) -> str:
    """NFC, one kind of line end, no control characters, at most one blank line in a row, no space around.

    A page is cleaned once, before anything reads it, so find counts in the same text that was shown.
    """
    if text.isascii() and text.isprintable():  # most lines: there is nothing to look for
        return text.strip()
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x0c", "\n").replace("\u2028", "\n")
    text = unicodedata.normalize("NFC", _CONTROLS.sub("", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _is_html(text: str, content_type: str) -> bool:
    return bool(_HTML.match(text[:_LOOKED_AT])) or "html" in content_type.lower().partition(";")[0]


def _html(text: str, url: str) -> tuple[str, str]:
    """Title and main text; the whole text of a page in which no main part is found."""
    trafilatura = _library("trafilatura")
    from lxml import etree, html

    text = text.replace("\0", "")
    try:
        tree = html.document_fromstring(
            text.encode("utf-8", "replace"), parser=html.HTMLParser(encoding="utf-8")
        )
    except (etree.ParserError, ValueError) as error:
        raise NoText("empty") from error
    title = tree.findtext(".//title") or tree.findtext(".//h1") or ""
    main = trafilatura.extract(
        text,
        url=url,
        output_format="markdown",
        include_links=True,
        include_tables=True,
        include_comments=False,
        favor_recall=True,
        with_metadata=False,
    )
    return title, main or _whole(tree)


def _whole(tree) -> str:
    from lxml import etree

    etree.strip_elements(tree, "script", "style", "noscript", "template", etree.Comment, with_tail=False)
    body = tree.find("body")
    return "\n".join(line.strip() for line in (tree if body is None else body).itertext() if line.strip())


def _pdf(body: bytes) -> tuple[str, str]:
    """Title and text layer, as far as pages can be read; a scan has none."""
    pypdf = _library("pypdf")
    try:
        document = pypdf.PdfReader(io.BytesIO(body))
        if document.is_encrypted and not document.decrypt(""):
            raise NoText("extraction")
        title = str((document.metadata or {}).get("/Title") or "")
        sheets, length = [], 0
        for sheet in document.pages[:_MOST_SHEETS]:
            sheets.append(sheet.extract_text() or "")
            length += len(sheets[-1])
            if length > _MOST_CHARS:
                break
    except NoText:
        raise
    except Exception as error:  # a damaged PDF fails in any way
        raise NoText("extraction") from error
    return title, "\n\n".join(sheets)


def _library(name: str):
    try:
        return __import__(name)
    except ImportError as error:
        raise InputError(f"reading web pages needs {name}: pip install 'carr_jax[web]'") from error
