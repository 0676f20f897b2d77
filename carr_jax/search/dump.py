"""Reads dumps of pages: JSON lines, gzipped or not, of any size, a line at a time.

A row has the text in `text` or `contents`, its address in `url`, `docid` or `id`, and its title in `title`.
Without one the title is that of a YAML header in front of the text, else the text's first line.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from carr_jax.addresses import canonical_url
from carr_jax.records import InputError, Page
from carr_jax.search.ranking import valid

Progress = Callable[[int, int], None]  # bytes of the files that were read, and of all of them

MOST_BAD = 0.01  # share of rows that may be unusable: above, this is another kind of file
_ADDRESSES, _TEXTS = ("url", "docid", "id"), ("text", "contents")
_TITLE_CHARS = 200
_HEADER_TITLE = re.compile(r"\A---\n(?:(?!---).*\n)*?title:[ \t]*(\S.*)\n", re.IGNORECASE)
_SHOWN = 3


@dataclass(frozen=True)
class Rejected:
    """A row that holds no page, and why not."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass
class Survey:
    """What a first look at the files found: how many pages, and which rows are left out."""

    pages: int = 0
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def left_out(self) -> set[tuple[str, int]]:
        return {(row.file, row.line) for row in self.rejected}


def survey(files: Sequence[Path], progress: Progress = lambda done, total: None) -> Survey:
    """Looks at every row before any costly work: is it a page, and has its address been there before?

    Keeps 32 bytes of each page.  Raises InputError when there is no page, or more than one row in a hundred is
    unusable.
    """
    found, keys, places = Survey(), bytearray(), bytearray()
    for number, line, row in rows(files, progress):
        try:
            page = page_of_row(row)
        except ValueError as error:
            found.rejected.append(Rejected(str(files[number]), line, str(error)))
            continue
        keys += hashlib.blake2b(canonical_url(page.url).encode(), digest_size=16).digest()
        places += (number << 40 | line).to_bytes(8, "little")
    _reject_doubles(found, files, np.frombuffer(keys, "V16"), np.frombuffer(places, "<u8"))
    found.pages = len(places) // 8 - sum(row.reason.startswith(_DOUBLE) for row in found.rejected)
    found.rejected.sort(key=lambda row: ([str(f) for f in files].index(row.file), row.line))
    if not found.pages or len(found.rejected) > MOST_BAD * (found.pages + len(found.rejected)):
        raise InputError(_refusal(found))
    return found


_DOUBLE = "its address has a page already"


def _reject_doubles(found: Survey, files: Sequence[Path], keys: np.ndarray, places: np.ndarray) -> None:
    """The first page of an address stays."""
    if len(keys) == 0:
        return
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    for i in np.flatnonzero(first[which.ravel()] != np.arange(len(keys))):
        before, here = (divmod(int(places[j]), 1 << 40) for j in (first[which.ravel()[i]], i))
        reason = f"{_DOUBLE} ({files[before[0]]}:{before[1]})"
        found.rejected.append(Rejected(str(files[here[0]]), here[1], reason))


def _refusal(found: Survey) -> str:
    bad = len(found.rejected)
    if not bad:
        return "there are no pages in these files"
    reasons = "; ".join(map(str, found.rejected[:_SHOWN]))
    return f"{bad} of {found.pages + bad} rows are no pages, more than one in a hundred: {reasons}"


def pages(
    files: Sequence[Path], left_out: set[tuple[str, int]], progress: Progress = lambda done, total: None
) -> Iterator[Page]:
    """The pages of the files but for the rows that a survey left out."""
    for number, line, row in rows(files, progress):
        if (str(files[number]), line) not in left_out:
            yield page_of_row(row)


def rows(files: Sequence[Path], progress: Progress) -> Iterator[tuple[int, int, bytes]]:
    """(number of the file, number of the line from 1, the line) of every line that is not empty.

    Raises InputError for a file that cannot be read to its end.
    """
    done, total = 0, sum(_size(file) for file in files)
    for number, file in enumerate(files):
        line = 0
        try:
            with file.open("rb") as raw, _unpacked(raw, file) as lines:
                for line, row in enumerate(lines, 1):
                    if line % 1000 == 0:
                        progress(done + raw.tell(), total)
                    if row.strip():
                        yield number, line, row
        except (OSError, EOFError) as error:
            raise InputError(f"{file}:{line + 1}: cannot be read on ({error})") from None
        done += _size(file)
    progress(total, total)


def _unpacked(raw: Any, file: Path) -> contextlib.AbstractContextManager[Any]:
    return gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else contextlib.nullcontext(raw)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None


def page_of_row(line: bytes) -> Page:
    """Raises ValueError that says what is wrong."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON ({error})") from None
    return page_of(row)


def page_of(row: Any) -> Page:
    """A row that was read.  Raises ValueError that says what is wrong."""
    if not isinstance(row, dict):
        raise ValueError("this is no object with keys")
    text = _first(row, _TEXTS)
    title = row.get("title") or ""
    if not isinstance(title, str):
        raise ValueError("title must be a string")
    return Page(_first(row, _ADDRESSES), valid(title.strip()) or title_of(text), text)


def _first(row: dict[str, Any], keys: Sequence[str]) -> str:
    """The first of these keys that has a value; numbers are written out."""
    value = next((row[key] for key in keys if row.get(key) not in (None, "")), None)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not (value := valid(value)).strip():
        raise ValueError(f"{' or '.join(keys)} must be a string with something in it")
    return value


def title_of(text: str) -> str:
    """The title in a YAML header before the text, else the text's first line, without quotes around."""
    header = _HEADER_TITLE.match(text)
    title = header[1] if header else text.lstrip().partition("\n")[0]
    return title.strip().strip('"').strip()[:_TITLE_CHARS]
