"""A graph from a dump of Wikidata, or of a part of it: JSON lines as Wikidata publishes them.

A line is an entity, with or without the comma that stands behind it in the published file, or a bracket.  An
item is kept when it has an English label and a page in the English Wikipedia, which is the page of its facts:

    {"id": "Q7259", "type": "item", "labels": {"en": {"value": "Ada Lovelace"}}, "aliases": {"en": [...]},
     "sitelinks": {"enwiki": {"title": "Ada Lovelace"}}, "claims": {"P19": [{"rank": "normal", "mainsnak":
     {"datavalue": {"type": "wikibase-entityid", "value": {"id": "Q84"}}}}]}}
    {"id": "P19", "type": "property", "labels": {"en": {"value": "place of birth"}}}

Its kind is the label of what it is an instance of (P31).  Relations are the labels of properties whose rows are
in the dump; one that is no noun ("educated at") has no wording and is left out.  A date becomes a text as
precise as it is, a number without a unit its digits.  Wikidata does not say whether the page states a fact: let
the scripted expert try the questions, with pages, and keep what it solves.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from carr_jax.data.graph import Entity, Fact, Graph
from carr_jax.records import InputError

Row = Mapping[str, Any]

_INSTANCE_OF = "P31"
_PAGE = "https://en.wikipedia.org/wiki/"
_PLAIN = "_-'()./:,@&+=!;$*"
_KINDS = {"human": "person"}
_NO_NOUN = re.compile(r" (?:at|by|for|from|in|of|on|to|with)$|^(?:has|is|located|said)\b|\bID$")
_TIME = re.compile(r"\+(\d{4,})-(\d\d)-(\d\d)T")
_YEAR, _MONTH, _DAY = 9, 10, 11  # Wikidata's precisions
_MONTHS = ("January February March April May June July August September October November December").split()


def is_wikidata(path: Path) -> bool:
    """Whether a file is one: its first row has an id and labels."""
    row = next(_rows(path), {})
    return {"id", "labels"} <= row.keys()


def read_wikidata(path: Path) -> Graph:
    """The graph of a dump.  Raises InputError for a line that is no JSON object, and when it has no facts."""
    items: dict[str, Row] = {}
    labels: dict[str, str] = {}
    for row in _rows(path):
        if label := _label(row):
            labels[row["id"]] = label
            if row.get("type") != "property" and _title(row):
                items[row["id"]] = row
    properties = {id: name for id, name in labels.items() if id.startswith("P") and not _NO_NOUN.search(name)}
    entities = [_entity(row, labels, properties) for row in items.values()]
    facts = [fact for row in items.values() for fact in _facts(row, items, properties)]
    if not facts:
        raise InputError(
            f"{path}: no facts between items that have pages; the dump must hold the rows of properties, too"
        )
    attributes = {name for entity in entities for name in entity.attributes}
    return Graph(entities, (fact for fact in facts if fact.relation not in attributes))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The entities of a dump, line by line."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if (text := line.strip().rstrip(b",")) and text not in (b"[", b"]"):
                    yield _object(text, f"{path}:{number}")
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def _object(text: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise InputError(f"{place}: no JSON ({error})") from None
    if not isinstance(row, dict):
        raise InputError(f"{place}: a row must be a JSON object, got {type(row).__name__}")
    return row


def _label(row: Row) -> str:
    return str(_at(row, "labels", "en", "value") or "")


def _title(row: Row) -> str:
    return str(_at(row, "sitelinks", "enwiki", "title") or "")


def _at(row: Any, *keys: str) -> Any:
    """What stands under the keys, one inside the other; None where there is nothing."""
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _list(row: Any, *keys: str) -> list[Any]:
    found = _at(row, *keys)
    return found if isinstance(found, list) else []


def _entity(row: Row, labels: Mapping[str, str], properties: Mapping[str, str]) -> Entity:
    aliases = [str(_at(alias, "value") or "") for alias in _list(row, "aliases", "en")]
    instance_of = next((labels[id] for id in _objects(row, _INSTANCE_OF) if id in labels), "thing")
    values = {
        name: texts[0]
        for id, name in properties.items()
        if len(texts := [text for value in _values(row, id) if (text := _text(value))]) == 1
    }
    names = tuple(dict.fromkeys(name for name in (_label(row), *aliases) if name.strip()))
    url = _PAGE + quote(_title(row).replace(" ", "_"), safe=_PLAIN)
    return Entity(row["id"], names, _KINDS.get(instance_of, instance_of), url, values)


def _facts(row: Row, items: Mapping[str, Row], properties: Mapping[str, str]) -> Iterator[Fact]:
    """The claims about other items that have pages."""
    url = _PAGE + quote(_title(row).replace(" ", "_"), safe=_PLAIN)
    for id, name in properties.items():
        for object in _objects(row, id):
            if id != _INSTANCE_OF and object in items and object != row["id"]:
                yield Fact(row["id"], name, object, url)


def _values(row: Row, property: str) -> list[Row]:
    """The values of the claims with the best rank that has any; deprecated ones count for nothing."""
    claims = _list(row, "claims", property)
    for rank in ("preferred", "normal"):
        values = [_at(claim, "mainsnak", "datavalue") for claim in claims if _at(claim, "rank") == rank]
        if found := [value for value in values if isinstance(value, dict)]:
            return found
    return []


def _objects(row: Row, property: str) -> list[str]:
    ids = (_at(value, "value", "id") for value in _values(row, property))
    return [id for id in ids if isinstance(id, str)]


def _text(value: Row) -> str:
    """A date or a plain number as a text, "" for anything else."""
    inside = _at(value, "value")
    if _at(value, "type") == "quantity" and _at(inside, "unit") == "1":
        return str(_at(inside, "amount") or "").lstrip("+")
    match = _TIME.match(str(_at(inside, "time") or "")) if _at(value, "type") == "time" else None
    precision = _at(inside, "precision")
    if match is None or precision not in (_YEAR, _MONTH, _DAY):
        return ""
    year, month, day = map(int, match.groups())
    words = [str(day)] * (precision == _DAY) + [_MONTHS[month - 1]] * (precision >= _MONTH) + [str(year)]
    return " ".join(words)
