"""Files that are whole or absent: a run can be killed at any instant."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write that appears under `path` only when the block ends without an error.

    Parent folders are made.  The bytes are on disk before the rename, so a reader never sees half a file.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process id keeps two writers apart; the leading dot keeps `*.jsonl.gz` globs away from leftovers.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """A file for people and programs: JSON, indented, whole or absent."""
    with atomic_file(path) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")
