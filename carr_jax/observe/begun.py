"""Groups that a checkpoint caught in flight: unfinished, or finished and not trained.  None of them is lost."""

from __future__ import annotations

import base64
import gzip
import json
import os
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from carr_jax.observe.files import atomic_file
from carr_jax.records import Begun, InputError, Trajectory
from carr_jax.stored import to_json, trajectory_from_json


def write_begun(path: str | os.PathLike[str], groups: Sequence[Begun]) -> None:
    """One JSON line per group, gzip-compressed, routes included."""
    with atomic_file(path) as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        for group in groups:
            packed.write(json.dumps(_row(group)).encode() + b"\n")


def read_begun(path: str | os.PathLike[str]) -> list[Begun]:
    """Inverse of `write_begun`.  Raises InputError, naming the file, when it is absent or damaged."""
    try:
        with gzip.open(path, "rb") as file:
            return [_begun(json.loads(line)) for line in file]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: the groups that were in flight at this checkpoint cannot be read ({error}); restore the "
            "file, or resume from an older checkpoint"
        ) from error


def _row(group: Begun) -> dict[str, Any]:
    trajectories = [to_json(t) | {"routes": _pack(t.routes)} for t in group.trajectories]
    return {"position": group.position, "version": group.version, "trajectories": trajectories}


def _begun(row: dict[str, Any]) -> Begun:
    return Begun(row["position"], row["version"], tuple(map(_trajectory, row["trajectories"])))


def _trajectory(row: dict[str, Any]) -> Trajectory:
    return trajectory_from_json(row | {"routes": _unpack(row["routes"])})


def _pack(routes: np.ndarray | None) -> dict[str, Any] | None:
    """int16 [N, L, k] as text: as JSON numbers they would be larger than all the rest."""
    if routes is None:
        return None
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(routes, "<i2").tobytes(), 1)).decode()
    return {"shape": routes.shape, "data": data}


def _unpack(packed: dict[str, Any] | None) -> np.ndarray | None:
    if packed is None:
        return None
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    return np.frombuffer(raw, "<i2").reshape(packed["shape"]).astype(np.int16)
