"""Text that others wrote, as a judge may read it: marked off, disarmed, and cut to size.

A page, a response or a name may try to speak as the user, close its quotation, or forge a verdict.  It cannot:
the marks around it hold a hash of what is inside, control tokens of chat templates are written with other
brackets, and a verdict counts only with a code that depends on the whole prompt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

_ROLES = (
    "s|bos|eos|pad|unk|im_start|im_end|system|user|assistant|human|think|thinking|tool|tools|tool_call|"
    "tool_calls|tool_response|tool_responses|tool_result|tool_results|function_call|function_calls|"
    "start_of_turn|end_of_turn|instruction|instructions"
)
_LOOK_ALIKES = (
    (re.compile(r"<(?=[|｜])"), "‹"),
    (re.compile(r"([|｜])>"), r"\1›"),
    (re.compile(rf"<(/?(?:{_ROLES})\s?/?)>", re.IGNORECASE), r"‹\1›"),
    (re.compile(r"<<(/?SYS)>>", re.IGNORECASE), r"‹‹\1››"),
    (
        re.compile(r"\[(/?(?:INST|SYSTEM_PROMPT|(?:AVAILABLE_)?TOOLS?|TOOL_(?:CALLS|RESULTS|CONTENT)))\]"),
        r"⁅\1⁆",
    ),
    (re.compile(r"\[\[(?=\s*(?:begin|end))", re.IGNORECASE), "⁅⁅"),
)
# Control characters, overriding text directions, and the tag characters that are read and not seen.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)


def quoted(text: str) -> str:
    """`text` in which nothing is a control token or a mark of ours; it reads the same.  Idempotent."""
    text = _UNSEEN.sub("\ufffd", text.replace("\r\n", "\n"))
    for pattern, other in _LOOK_ALIKES:
        text = pattern.sub(other, text)
    return text


def block(name: str, text: str) -> str:
    """`text` between two marks that cannot stand in it: they hold a hash of it."""
    content = quoted(text)
    mark = _hash(content)
    while mark in content:
        mark = _hash(mark + content)
    return f"[[begin {name} {mark}]]\n{content}\n[[end {name} {mark}]]\n"


def code_of(*parts: str) -> str:
    """The code that a verdict on a prompt must carry: nobody who wrote a part of the prompt can know it."""
    return _hash("\0".join(parts))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# --------------------------------------------------------------------------------------------- cut to size

_BORDERS = (re.compile(r"\n\s*\n"), re.compile(r"[.!?]['\")\]]?(?=\s)|[。！？]"), re.compile(r"\s"))
_NOTE = "\n[... {} bytes left out]"


def size(text: str) -> int:
    """Bytes of UTF-8: an upper bound of tokens for any tokenizer of bytes (JP-16)."""
    return len(text.encode(errors="replace"))


def capped(text: str, limit: int) -> str:
    """The begin of `text` in at most `limit` bytes, with a note of what was left out.

    It ends with a paragraph, else a sentence, else a word, when one of them ends in the last quarter.  `limit`
    must leave room for the note.
    """
    if size(text) <= limit:
        return text
    room = limit - size(_NOTE.format(size(text)))
    kept = text.encode(errors="replace")[: max(room, 0)].decode(errors="ignore")
    kept = kept[: _last_border(kept)].rstrip()
    return kept + _NOTE.format(size(text) - size(kept))


def _last_border(text: str) -> int:
    """Where the best border in the last quarter of `text` ends; the end of `text` when there is none."""
    start = len(text) * 3 // 4
    for border in _BORDERS:
        if ends := [match.end() for match in border.finditer(text, start)]:
            return ends[-1]
    return len(text)


def shares(sizes: Sequence[int], total: int) -> list[int]:
    """How many of `total` bytes each text may have: small ones all they need, large ones equal parts."""
    given, left = [0] * len(sizes), total
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for done, i in enumerate(order):
        given[i] = min(sizes[i], left // (len(sizes) - done))
        left -= given[i]
    return given
