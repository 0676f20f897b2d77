"""Makes an index folder from page files: whole or not there, with memory that does not grow with the pages.

OUT/words/          the tantivy index, with the pages' texts
OUT/vectors.npy     float16 [pages, D], with a dense model
OUT/rejected.jsonl  rows that were left out, if any, with file, line and reason
OUT/manifest.json   how many pages, made from what, by which versions
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from carr_jax.addresses import canonical_url
from carr_jax.records import InputError, Page
from carr_jax.search.dense import Encoder, VectorFile
from carr_jax.search.dump import Progress, Survey, pages, survey
from carr_jax.search.index import LAYOUT, MANIFEST, index_format, read_manifest
from carr_jax.search.ranking import document, new_index, writer

_BATCH = 256  # pages that are encoded together


def build(
    files: Sequence[Path],
    out: Path,
    progress: Progress = lambda done, total: None,
    *,
    encoder: Encoder | None = None,
    dense_sha256: str = "",
) -> dict[str, Any]:
    """Builds the index of the files in `out` and returns its manifest; one that is there already is kept.

    All happens in a folder beside it, which gets its name when it is whole.  Raises InputError for rows and
    folders that cannot be used, and when the files change meanwhile.
    """
    made_from = {"layout": LAYOUT, "tantivy": index_format(), "files": _checksums(files), "dense": dense_sha256}
    if out.exists():
        return _kept(out, made_from)
    with _workplace(out) as folder:
        found = survey(files, progress)
        vectors = VectorFile(folder, found.pages, encoder) if encoder else None
        write_index(folder / "words", pages(files, found.left_out, progress), vectors)
        if _checksums(files) != made_from["files"]:
            raise InputError("the page files changed while the index was built; build it again")
        _write_rejected(folder, found)
        manifest = {**made_from, "pages": found.pages, "rejected": len(found.rejected)}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        _to_disk(folder)
        os.rename(folder, out)
    return manifest


def write_index(folder: Path, found: Iterable[Page], vectors: VectorFile | None = None) -> None:
    """A tantivy index of the pages, and the rows of their vectors."""
    folder.mkdir()
    writing = writer(new_index(str(folder), stored=True))
    texts: list[str] = []
    for number, page in enumerate(found):
        made = document(number, page)
        made.add_text("url", page.url)
        made.add_text("key", canonical_url(page.url))
        writing.add_document(made)
        if vectors:
            texts.append(f"{page.title}\n{page.text}")
            if len(texts) == _BATCH:
                vectors.add(texts)
                texts = []
    writing.commit()
    writing.wait_merging_threads()
    if vectors:
        if texts:
            vectors.add(texts)
        vectors.close()


def _checksums(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Name, bytes and SHA-256 of each file.  Raises InputError for a file that cannot be read."""
    found = []
    for path in files:
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        found.append({"name": path.name, "bytes": path.stat().st_size, "sha256": digest})
    return found


def _kept(out: Path, made_from: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an index that is what is asked for.  Raises InputError for anything else."""
    manifest = read_manifest(out)
    if any(manifest.get(key) != value for key, value in made_from.items()):
        raise InputError(f"{out} is an index of other pages or another model; give another --out, or remove it")
    return manifest


@contextlib.contextmanager
def _workplace(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`, for one process at a time; what a killed build left in it is removed."""
    folder = out.with_name(out.name + ".part")
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _empty(folder)
        yield folder
    except BlockingIOError:
        raise InputError(f"{out}: another process is building it") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(held)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write_rejected(folder: Path, found: Survey) -> None:
    if found.rejected:
        lines = (json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n" for row in found.rejected)
        (folder / "rejected.jsonl").write_text("".join(lines))


def _to_disk(folder: Path) -> None:
    """Every file of the folder survives a power cut before the folder has its name."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
