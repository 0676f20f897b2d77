"""Rows of a file, whatever its kind, and what to do about bad ones.

.jsonl .jsonl.gz    one JSON object in a line
.json               one list of objects, as 2WikiMultihopQA and HotpotQA come
.parquet            one row in a row; needs the extra `data`
.enc                the container carr-xor-sha256-v1 around JSON lines, see `data.container`
hf:NAME/SPLIT       a split of a dataset on the Hugging Face hub, or hf:NAME:CONFIG/SPLIT; needs `datasets`
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from carr_jax.data.container import password, unlock
from carr_jax.records import InputError

HUB = "hf:"
CORPUS_FILES = ("corpus.jsonl", "corpus.jsonl.gz")
_IN_FOLDERS = ("*.jsonl", "*.jsonl.gz", "*.parquet")
_SHOWN = 10

Row = Mapping[str, Any]
Item = TypeVar("Item")
Raw = tuple[str, "bytes | Row"]  # "file:line", and the line or what is decoded already


def parse_all(
    files: Sequence[Path],
    parse: Callable[[Row, str], Item],
    on_bad: Callable[[Sequence[str]], Any] | None = None,
) -> list[Item]:
    """`parse(row, "file:line")` of every row of every file, in order.

    All bad rows go to `on_bad` together, before anything costly starts; without one they stop the program.
    Raises InputError for that, and for a file that cannot be read to its end.
    """
    items, bad = [], []
    for place, raw in (pair for file in files for pair in _rows(file)):
        try:
            items.append(parse(_object(raw), place))
        except KeyError as error:
            bad.append(f"{place}: the key {error} is missing")
        except (AttributeError, IndexError, RecursionError, TypeError, ValueError) as error:
            bad.append(f"{place}: {error}")
    if bad:
        (on_bad or refuse)(bad)
    return items


def refuse(bad: Sequence[str]) -> NoReturn:
    """Raises InputError: how many rows are bad, and the first ten."""
    raise InputError(f"{len(bad)} bad rows; mend or remove them\n" + shown(bad))


def shown(bad: Sequence[str]) -> str:
    """The first ten, and how many more there are."""
    more = [f"... and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
    return "\n".join([*bad[:_SHOWN], *more])


def text(row: Row, key: str) -> str:
    """A text that is not empty.  Raises KeyError, TypeError or UnicodeEncodeError."""
    if not isinstance(row[key], str) or not row[key].strip():
        raise TypeError(f"{key!r} must be a text that is not empty, got {row[key]!r}")
    row[key].encode()  # a lone surrogate would fail much later, in a tokenizer
    return row[key]


def texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of texts; a text in its place would be read letter by letter.  Raises TypeError."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} must be a list of texts, got {value!r}")
    return tuple(value)


def data_files(path: Path) -> list[Path]:
    """The file, or by name every .jsonl(.gz) and .parquet file of a folder but its corpus.

    Raises InputError for a folder that has none.
    """
    if not path.is_dir():
        return [path]
    found = sorted(f for pattern in _IN_FOLDERS for f in path.glob(pattern) if f.name not in CORPUS_FILES)
    if not found:
        raise InputError(f"{path}: no data files ({', '.join(_IN_FOLDERS)}) in this directory")
    return found


def corpus_file(path: Path) -> Path | None:
    """The pages in a folder, or beside a file; None when there are none."""
    folder = path if path.is_dir() else path.parent
    return next((folder / name for name in CORPUS_FILES if (folder / name).exists()), None)


# ----------------------------------------------------------------------------------------------- kinds of files


def _rows(file: Path) -> Iterable[Raw]:
    if str(file).startswith(HUB):
        return _numbered(str(file), _hub_rows(str(file)))
    if not file.is_file():
        raise InputError(f"{file}: there is no such file")
    match file.suffix:
        case ".parquet":
            return _numbered(str(file), _parquet_rows(file))
        case ".json":
            return _numbered(str(file), _listed(file))
        case ".enc":
            return _lines(str(file), unlock(file, password()).splitlines())
    return _unzipped(file)


def _unzipped(file: Path) -> Iterator[Raw]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            yield from _lines(str(file), stream)
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: not a whole gzip file ({error}); fetch it again") from error


def _lines(name: str, lines: Iterable[bytes]) -> Iterator[Raw]:
    yield from ((f"{name}:{n}", line) for n, line in enumerate(lines, 1) if line.strip())


def _numbered(name: str, rows: Iterable[Row]) -> Iterator[Raw]:
    yield from ((f"{name}:{n}", row) for n, row in enumerate(rows, 1))


def _object(raw: bytes | Row) -> Row:
    row = json.loads(raw, parse_constant=_no_number) if isinstance(raw, bytes) else raw
    if not isinstance(row, dict):
        raise TypeError(f"a row must be a JSON object, got {type(row).__name__}")
    return row


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _listed(file: Path) -> list[Row]:
    try:
        rows = json.loads(file.read_bytes(), parse_constant=_no_number)
    except (RecursionError, ValueError) as error:
        raise InputError(f"{file}: not a whole JSON file ({error}); fetch it again") from None
    if not isinstance(rows, list):
        raise InputError(f"{file}: a .json file must hold one list of objects; name JSON lines .jsonl")
    return rows


def _parquet_rows(file: Path) -> Iterator[Row]:
    """Columns that a row has no value for are left out, as they are in JSON lines."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{file}: reading .parquet needs pyarrow; pip install 'carr_jax[data]'") from None
    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches():
            yield from ({k: v for k, v in row.items() if v is not None} for row in batch.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{file}: not a whole Parquet file ({error}); fetch it again") from None


def _hub_rows(name: str) -> Iterator[Row]:
    """Asks the hub, which the program does nowhere else."""
    dataset, _, split = name.removeprefix(HUB).rpartition("/")
    dataset, _, config = dataset.partition(":")
    if not dataset or not split:
        raise InputError(f"{name} is no dataset of the hub; write hf:NAME/SPLIT or hf:NAME:CONFIG/SPLIT")
    try:
        import datasets
    except ImportError:
        raise InputError(f"{name}: reading from the hub needs datasets; pip install datasets") from None
    try:
        rows = datasets.load_dataset(dataset, config or None, split=split)
    except Exception as error:  # the library raises whatever its own libraries raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{name}: the hub gives no such split ({reason:.300})") from None
    for row in rows:
        yield {key: value for key, value in row.items() if value is not None}
