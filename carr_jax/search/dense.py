"""Search by meaning: exact inner products of a query with all pages, which lie in a float16 matrix on disk.

The encoder is a Sentence-Transformers model in a folder that the user gives (the extra `carr_jax[dense]`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from carr_jax.records import InputError

VECTORS = "vectors.npy"
_BLOCK_BYTES = 1 << 25  # of the matrix, converted to float32 at a time


class Encoder(Protocol):
    """Turns texts into vectors."""

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        """float [len(texts), D]"""
        ...

    def query(self, text: str) -> np.ndarray:
        """float [D]"""
        ...


class DenseSearch:
    """The pages whose vectors have the largest inner product with that of a query, all pages compared."""

    def __init__(self, vectors_NxD: np.ndarray, encoder: Encoder) -> None:
        self._vectors_NxD, self._encoder = vectors_NxD, encoder

    def nearest(self, query: str, num: int) -> list[int]:
        """Numbers of the `num` nearest pages, nearest first; equal products keep the order of the pages."""
        query_D = unit(self._encoder.query(query)[None])[0]
        return nearest(self._vectors_NxD, query_D, num)


def nearest(vectors_NxD: np.ndarray, query_D: np.ndarray, num: int) -> list[int]:
    """Rows of the largest inner products, in float32, by blocks: memory does not grow with N."""
    step = max(1, _BLOCK_BYTES // (4 * vectors_NxD.shape[1]))
    rows, products = np.empty(0, np.int64), np.empty(0, np.float32)
    for start in range(0, len(vectors_NxD), step):
        block = np.asarray(vectors_NxD[start : start + step], np.float32) @ query_D
        rows = np.concatenate([rows, start + np.arange(len(block))])
        products = np.concatenate([products, block])
        best = np.lexsort((rows, -products))[:num]
        rows, products = rows[best], products[best]
    return rows.tolist()


def unit(vectors_NxD: np.ndarray) -> np.ndarray:
    """Rows of length 1, in float32; a row of zeros stays."""
    vectors_NxD = np.asarray(vectors_NxD, np.float32)
    return vectors_NxD / np.maximum(np.linalg.norm(vectors_NxD, axis=1, keepdims=True), 1e-12)


# ---------------------------------------------------------------------------------------------------- on disk


class VectorFile:
    """The matrix of a new index, filled row by row."""

    def __init__(self, folder: Path, pages: int, encoder: Encoder) -> None:
        self._path, self._pages, self._encoder = folder / VECTORS, pages, encoder
        self._matrix_NxD: np.ndarray | None = None
        self._filled = 0

    def add(self, texts: Sequence[str]) -> None:
        """The vectors of the next pages."""
        vectors = unit(self._encoder.documents(texts)).astype(np.float16)
        if self._matrix_NxD is None:
            shape = (self._pages, vectors.shape[1])
            self._matrix_NxD = np.lib.format.open_memmap(self._path, "w+", np.float16, shape)
        self._matrix_NxD[self._filled : self._filled + len(texts)] = vectors
        self._filled += len(texts)

    def close(self) -> None:
        """All of it is on disk."""
        if self._matrix_NxD is not None:
            self._matrix_NxD.flush()


def open_dense(folder: Path, model: str, manifest: Mapping[str, Any]) -> DenseSearch:
    """The matrix of an index.  Raises InputError when it has none, or one of another model."""
    if not manifest.get("dense"):
        raise InputError(f"{folder} was built without a dense model; build it again with --dense-model={model}")
    if manifest["dense"] != model_sha256(Path(model)):
        raise InputError(f"{folder} was built with another dense model than {model}; give the same folder")
    return DenseSearch(np.load(folder / VECTORS, mmap_mode="r"), load_encoder(model))


def model_sha256(folder: Path) -> str:
    """One checksum of a model folder's files and their names.  Raises InputError when there are none."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    if not files:
        raise InputError(f"{folder}: there is no model in this folder")
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            one = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)} {one}\n".encode())
    return digest.hexdigest()


class SentenceEncoder:
    """A Sentence-Transformers model; queries get the prompt that the model has for them."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.asarray(self._model.encode_document(list(texts), show_progress_bar=False))

    def query(self, text: str) -> np.ndarray:
        return np.asarray(self._model.encode_query([text], show_progress_bar=False))[0]


def load_encoder(model: str) -> SentenceEncoder:
    """Raises InputError without the extra, or for a folder that holds no model.  Runs no code of the folder."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise InputError("dense search needs an extra: pip install 'carr_jax[dense]'") from None
    if not Path(model).is_dir():
        raise InputError(f"{model}: there is no such folder")
    try:
        return SentenceEncoder(SentenceTransformer(model, local_files_only=True, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise InputError(f"{model}: no model can be loaded from it ({error})") from None
