"""Files that grow result by result: each is on disk before it counts, a kill loses what is under way, no more.

What took long to make is not made again, and what is whole at last is frozen (`data.frozen`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from carr_jax.data.frozen import manifest_of
from carr_jax.observe.files import atomic_file
from carr_jax.records import InputError
from carr_jax.stored import file_sha256, to_json

Item = TypeVar("Item")
Result = TypeVar("Result")


def rejects_of(out: Path) -> Path:
    """Where what was refused stands; no reader of a folder takes it for a question file."""
    return out.with_name(out.name + ".rejects")


async def results(
    items: Iterable[Item], work: Callable[[Item], Awaitable[Result]], at_once: int
) -> AsyncIterator[tuple[Item, Result]]:
    """The items with what was made of them, as they come; what runs when one raises is waited for.

    An item is taken when there is room for it, so `items` may look at what came of those before.
    """
    running: dict[asyncio.Future[Result], Item] = {}
    waiting = iter(items)
    trouble: BaseException | None = None
    while True:
        while trouble is None and len(running) < at_once and (item := next(waiting, None)) is not None:
            running[asyncio.ensure_future(work(item))] = item
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


def kept_rows(path: Path, read: Callable[[dict], Result]) -> list[Result]:
    """The rows of a file that may not be there; a last line that a kill tore off is removed.

    Raises InputError for a row that `read` does not know.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    rows = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            rows.append(read(json.loads(line)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}:{number}: no row of this program ({error!r}); give another --out"
            ) from None
    return rows


def appending(path: Path) -> BinaryIO:
    """A file to `append` to; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab", buffering=0)


def append(file: BinaryIO, record: Any) -> None:
    """One line, on disk before it counts."""
    file.write(_line(record))
    os.fsync(file.fileno())


def freeze(out: Path, rows: Sequence[Any], rejects: Sequence[Any], facts: Mapping[str, Any]) -> None:
    """Both files whole and in order, then the manifest, which holds the SHA-256 of `out` and the facts."""
    for path, records in ((out, rows), (rejects_of(out), rejects)):
        with atomic_file(path) as file:
            file.writelines(map(_line, records))
    with atomic_file(manifest_of(out)) as file:
        file.write(json.dumps({"sha256": file_sha256(out), **facts}, indent=1).encode() + b"\n")


def _line(record: Any) -> bytes:
    return json.dumps(to_json(record), ensure_ascii=False).encode() + b"\n"
