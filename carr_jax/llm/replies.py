"""From the text of a reply to one JSON object, tolerant of how it is written and strict about what it says.

Models wrap their object in prose and fences, quote the text they judge, write Python's True, leave a comma
behind.  All of that is read.  But when two objects of one reply speak of the same key and do not agree, none is
picked: the text that is judged may have been written to be quoted (JP-05).  All functions take linear time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from carr_jax.llm.errors import Unusable
from carr_jax.llm.messages import Reply

_DEPTH = 3  # how far inside braces that are no JSON an object is looked for

_THOUGHT = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
# A string ends at its line's end: a lone quote in prose must not hide the rest of the reply.
_BRACES = re.compile(r'[{}]|"(?:[^"\\\n]|\\.)*+"?')
_PIECES = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*+"?)|,(?=\s*+[}\]])|\b(?P<word>True|False|None)\b', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9A-Fa-f]{4})|)')
_UNFINISHED = {"length": "cut off", "content_filter": "filtered"}
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}


def answer_text(reply: Reply) -> str:
    """Where the object of a reply is looked for: its text, or its reasoning when there is no text (JP-10).

    Raises Unusable for a refusal, a reply that was cut off or filtered, and one that says nothing.
    """
    if reply.refusal:
        raise Unusable(f"the model refused: {' '.join(reply.refusal.split())[:200]}")
    if reply.finish in ("length", "content_filter"):
        raise Unusable(
            {"length": "the reply was cut off", "content_filter": "the reply was filtered"}[reply.finish]
        )
    if text := after_thought(reply.text) or after_thought(reply.reasoning):
        return text
    raise Unusable("the reply is empty")


def is_from_reasoning(reply: Reply) -> bool:
    """Whether `answer_text` is the reasoning, for want of anything else."""
    return not after_thought(reply.text)


def after_thought(text: str) -> str:
    """`text` behind the end of its thought; what is written while thinking is a draft.

    A text that begins with an object has no thought: the mark stands in one of its strings.
    """
    if text.lstrip().startswith("{"):
        return text.strip()
    ends = [match.end() for match in _THOUGHT.finditer(text)]
    return text[ends[-1] if ends else 0 :].strip()


def read_object(text: str, keys: Collection[str], marks: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The values of `keys` in the one JSON object of `text` that has them all; further keys are left out.

    Only objects that carry every entry of `marks` count.  Raises Unusable when none has all keys, and when
    objects that count (or one object, with a key twice) disagree on a value.
    """
    marks = marks or {}
    shortest = min(map(len, keys), default=0) + len('{"":0}')
    found = [o for o in _objects(text, shortest) if all(_same(o.get(k, _NOTHING), v) for k, v in marks.items())]
    said: dict[str, Any] = {}
    for key, value in ((key, o[key]) for o in found for key in keys if key in o):
        if not _same(said.setdefault(key, value), value):
            raise Unusable(f"the reply says two things about {key!r}")
    if not any(o.keys() >= set(keys) for o in found):
        missing = sorted(set(keys) - set(said))
        raise Unusable(f"the reply holds no object with {', '.join(missing or sorted(keys))}"[:200])
    return {key: said[key] for key in keys}


_NOTHING = object()


def _same(a: Any, b: Any) -> bool:
    """Equal as JSON: 1 is not true."""
    if a is _NOTHING:
        return False
    try:
        return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
    except RecursionError:  # nested too deep to compare: fail closed
        return False


def _objects(text: str, shortest: int) -> Iterator[dict[str, Any]]:
    """The objects of a reply: the whole of it, else the outermost pairs of braces that are JSON (JP-02).

    Those of less than `shortest` characters are passed over: they are too short for any key.
    """
    whole = _loads(text)
    if whole is not None:
        yield whole
        return
    spans = _spans(text)
    inside = -1  # the end of the last object, in which no other is looked for
    for start, end, depth in spans:
        if start < inside or depth > _DEPTH or end - start < shortest:
            continue
        if (value := _loads(text[start:end])) is not None:
            inside = end
            yield value


def _spans(text: str) -> list[tuple[int, int, int]]:
    """(start, end, depth) of the pairs of braces in order; depth counts the pairs around, from 0."""
    position, pairs, opened = 0, [], []
    while not opened and (start := text.find("{", position)) >= 0:
        opened = [start]  # only inside braces is a quote the begin of a string
        position = start + 1
        for match in _BRACES.finditer(text, position):
            position = match.end()
            if match[0] == "{":
                opened.append(match.start())
            elif match[0] == "}":
                pairs.append((opened.pop(), position))
                if not opened:
                    break
    return _with_depths(sorted(pairs))


def _with_depths(pairs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Nested intervals in order, each with the number of those around it."""
    around: list[int] = []
    spans = []
    for start, end in pairs:
        while around and around[-1] <= start:
            around.pop()
        spans.append((start, end, len(around)))
        around.append(end)
    return spans


# --------------------------------------------------------------------------------------------------- one object


def _loads(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, as it stands or repaired; None for anything else."""
    for candidate in (text, _repaired(text)):
        try:
            value = json.loads(candidate, object_pairs_hook=_agreeing, parse_constant=_no_number, strict=False)
            return value if isinstance(value, dict) else None
        except (ValueError, RecursionError):
            continue
    return None


def _agreeing(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of the pairs.  Raises Unusable when a key stands twice with different values."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values and not _same(values[key], value):
            raise Unusable(f"the reply says two things about {key[:80]!r}")
        values[key] = value
    return values


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _repaired(text: str) -> str:
    """`text` with Python's words, trailing commas and invalid escapes (JP-06) as JSON has them."""
    return _PIECES.sub(_repair, text)


def _repair(piece: re.Match) -> str:
    if piece["word"]:
        return _JSON_WORDS[piece["word"]]
    return _BAD_ESCAPE.sub(_escape, piece["string"]) if piece["string"] else ""


def _escape(escape: re.Match) -> str:
    return escape[0] if escape[1] else "\\\\"
