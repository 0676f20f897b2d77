"""Work of many parts that a kill may interrupt: each result is a line on disk before it counts."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from carr_jax.records import InputError
from carr_jax.stored import to_json

Item = TypeVar("Item")
Result = TypeVar("Result")


def rows_of(path: Path, read: Callable[[dict], Result]) -> list[Result]:
    """The rows of a file that may not be there; a last line that a kill tore off is removed.

    Raises InputError, naming the line, for one that `read` cannot read.
    """
    if not path.exists():
        return []
    rows: list[Result] = []
    with path.open("r+b") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                file.seek(-len(line), os.SEEK_END)
                file.truncate()
                break
            try:
                rows.append(read(json.loads(line)))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{path}:{number}: no row of this program ({error!r}); give another --out"
                ) from None
    return rows


def appending(path: Path) -> BinaryIO:
    """The file, open for `append`; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab", buffering=0)


def line_of(record: Any) -> bytes:
    """A record as a line of JSON."""
    return json.dumps(to_json(record), ensure_ascii=False).encode() + b"\n"


def append(file: BinaryIO, record: Any) -> None:
    """One line, on disk before it counts."""
    file.write(line_of(record))
    os.fsync(file.fileno())


async def as_they_come(
    items: Iterable[Item], make: Callable[[Item], Awaitable[Result]], in_flight: int
) -> AsyncIterator[tuple[Item, Result]]:
    """The items with what was made of them; when one raises, those in work are waited for first."""
    running: dict[asyncio.Future[Result], Item] = {}
    waiting = iter(items)
    trouble: BaseException | None = None
    nothing = object()
    while True:
        while trouble is None and len(running) < in_flight and (item := next(waiting, nothing)) is not nothing:
            running[asyncio.ensure_future(make(item))] = item
        if not running:
            break
        finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            item = running.pop(task)
            if task.exception() is None:
                yield item, task.result()
            else:
                trouble = trouble or task.exception()
    if trouble is not None:
        raise trouble
