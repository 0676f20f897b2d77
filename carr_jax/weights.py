"""Weights as Hugging Face stores them: one table from tensor name to parameter, read and written by it.

A checkpoint folder holds `config.json` and either `model.safetensors` or several shards with
`model.safetensors.index.json`.  Files are read by the offsets in their headers, only the slices that a device
needs; they are written tensor by tensor.  So neither direction holds a second copy of the model, and what goes
from folder to folder (`save_params` of `map_params`) is not held at all.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from carr_jax.distributed import is_first, pick, wait_for_all
from carr_jax.models.config import ModelConfig, to_hf_config
from carr_jax.models.qwen3 import Params, param_shapes
from carr_jax.records import InputError
from carr_jax.stored import file_sha256

CONFIG, SINGLE, INDEX, MANIFEST = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "manifest.json",
)
SHARD_BYTES = 5_000_000_000
_KINDS = {"float32": "F32", "bfloat16": "BF16"}
_DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
_HEADER_LIMIT = 100_000_000  # bytes; the format's own
_SHOWN = 5  # names of a list in an error message


# ---------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint and its place in the parameter tree.

    `path` names the parameter; `index` is the place in its stacked leading axes: (), (layer,) or (layer,
    expert).  `inputs` counts the leading axes (after `index`) that the layer contracts: a linear layer is
    stored as [out, in] and held as [in..., out...].  0 means a vector or the embedding, stored as it is held.
    """

    name: str
    path: tuple[str, ...]
    index: tuple[int, ...] = ()
    inputs: int = 0


_ATTENTION = (
    ("input_layernorm", ("attention_norm", "scale"), 0),
    ("self_attn.q_proj", ("attention", "q"), 1),
    ("self_attn.k_proj", ("attention", "k"), 1),
    ("self_attn.v_proj", ("attention", "v"), 1),
    ("self_attn.o_proj", ("attention", "o"), 2),
    ("self_attn.q_norm", ("attention", "q_norm", "scale"), 0),
    ("self_attn.k_norm", ("attention", "k_norm", "scale"), 0),
    ("post_attention_layernorm", ("mlp_norm", "scale"), 0),
)
_PROJECTIONS = ("gate", "up", "down")


def table(config: ModelConfig) -> list[Entry]:
    """All tensors of a checkpoint of this architecture, in the order of the forward pass."""
    entries = [Entry("model.embed_tokens.weight", ("embedding",))]
    for layer in range(config.num_layers):
        at = f"model.layers.{layer}"
        entries += [Entry(f"{at}.{name}.weight", ("layers", *p), (layer,), n) for name, p, n in _ATTENTION]
        if config.is_moe:
            entries.append(Entry(f"{at}.mlp.gate.weight", ("layers", "moe", "router"), (layer,), 1))
            entries += [
                Entry(f"{at}.mlp.experts.{e}.{p}_proj.weight", ("layers", "moe", p), (layer, e), 1)
                for e in range(config.num_experts)
                for p in _PROJECTIONS
            ]
        else:
            entries += [
                Entry(f"{at}.mlp.{p}_proj.weight", ("layers", "mlp", p), (layer,), 1) for p in _PROJECTIONS
            ]
    entries.append(Entry("model.norm.weight", ("final_norm", "scale")))
    if not config.tie_embeddings:
        entries.append(Entry("lm_head.weight", ("head",), (), 1))
    return entries


def stored_shape(entry: Entry, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in the file of an entry whose whole parameter has `shape`."""
    held = tuple(shape[len(entry.index) :])
    if not entry.inputs:
        return held
    return math.prod(held[entry.inputs :]), math.prod(held[: entry.inputs])


def as_held(stored: np.ndarray, held_shape: Sequence[int], inputs: int) -> np.ndarray:
    """A view of a stored tensor with the axes of the parameter."""
    if not inputs:
        return stored
    outputs = len(held_shape) - inputs
    axes = (*range(outputs, len(held_shape)), *range(outputs))
    return stored.reshape(*held_shape[inputs:], *held_shape[:inputs]).transpose(axes)


def as_stored(held: np.ndarray, inputs: int) -> np.ndarray:
    """Inverse of `as_held`."""
    if not inputs:
        return held
    axes = (*range(inputs, held.ndim), *range(inputs))
    return held.transpose(axes).reshape(-1, math.prod(held.shape[:inputs]))


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Stack:
    """A parameter that still lies in its files: `shape` is that of the parameter, nothing is read yet.

    `stack[index]` is one tensor as it is held, a memory-mapped view in the type of the file; so `save_params`
    of a tree of stacks copies a model with one tensor in memory.
    """

    shape: tuple[int, ...]
    entries: Mapping[tuple[int, ...], Entry]
    tensors: Mapping[str, np.ndarray]

    def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
        entry = self.entries[index]
        return as_held(self.tensors[entry.name], self.shape[len(index) :], entry.inputs)

    def read(self, where: tuple[slice, ...]) -> np.ndarray:
        """float32 values at `where`, a slice of each axis, read tensor by tensor."""
        ranges = [range(*s.indices(n)) for s, n in zip(where, self.shape, strict=True)]
        leading = len(next(iter(self.entries)))
        out = np.empty([len(r) for r in ranges], np.float32)
        for place in itertools.product(*(range(len(r)) for r in ranges[:leading])):
            index = tuple(r[i] for r, i in zip(ranges, place, strict=False))
            out[place] = self[index][tuple(where[leading:])]
        return out


def map_params(folder: Path | str, config: ModelConfig) -> Params:
    """The parameters of a checkpoint as a tree of `Stack`.

    Raises InputError that names every tensor that is missing, unknown or has another shape.
    """
    tensors = read_tensors(Path(folder))
    shapes = param_shapes(config)
    _check(Path(folder), config, tensors, shapes)
    entries: dict[tuple[str, ...], dict[tuple[int, ...], Entry]] = {}
    for entry in table(config):
        entries.setdefault(entry.path, {})[entry.index] = entry

    def stack(path: tuple, shape: jax.ShapeDtypeStruct) -> Stack:
        return Stack(shape.shape, entries[tuple(key.key for key in path)], tensors)

    return jax.tree_util.tree_map_with_path(stack, shapes)


def load_params(folder: Path | str, config: ModelConfig, shardings: Params | None = None) -> Params:
    """The float32 parameters of a checkpoint: arrays on `shardings` (a tree of them), or NumPy without.

    Each host reads only the slices of its own devices.  Raises InputError as `map_params` does.
    """
    stacks = map_params(folder, config)
    if shardings is None:
        return jax.tree.map(lambda stack: stack.read((slice(None),) * len(stack.shape)), stacks)
    return jax.tree.map(lambda x, s: jax.make_array_from_callback(x.shape, s, x.read), stacks, shardings)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Memory-mapped views of all tensors of a folder, by name; nothing is read yet.

    Raises InputError for a missing, cut or malformed file, a tensor without a shard or in two of them.
    """
    index = folder / INDEX
    if not index.exists():
        return _read_file(folder / SINGLE)
    where: dict[str, str] = json.loads(index.read_text())["weight_map"]
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(set(where.values())):
        if Path(name).name != name:
            raise InputError(f"{index}: {name!r} is no plain file name")
        found = _read_file(folder / name)
        if twice := sorted(set(found) & set(tensors)):
            raise InputError(f"{folder}: {_some(twice)} stand in two shards")
        tensors |= found
    if different := sorted(set(where) ^ set(tensors)):
        raise InputError(f"{index}: does not agree with the shards about {_some(different)}")
    return tensors


def _read_file(path: Path) -> dict[str, np.ndarray]:
    """Views of the tensors of one safetensors file."""
    if not path.is_file():
        raise InputError(f"{path.parent}: there is no {path.name}")
    data = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if not 0 < length <= min(_HEADER_LIMIT, len(data) - 8):
        raise InputError(f"{path}: not a whole safetensors file; fetch it again")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
        header.pop("__metadata__", None)
        return {name: _view(data[8 + length :], name, **facts) for name, facts in header.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path}: {error}; not a safetensors file that can be read") from error


def _view(data: np.ndarray, name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    if dtype not in _DTYPES:
        raise ValueError(f"{name} has the type {dtype}, only {', '.join(_DTYPES)} can be read")
    begin, end = data_offsets
    if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise ValueError(f"{name} does not lie inside the file, or has another size than its shape")
    return data[begin:end].view(_DTYPES[dtype]).reshape(shape)


def _check(folder: Path, config: ModelConfig, tensors: Mapping[str, np.ndarray], shapes: Params) -> None:
    """Every tensor of the table is there with its shape, and no other."""
    wanted = {e.name: stored_shape(e, _at(shapes, e.path).shape) for e in table(config)}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if config.tie_embeddings and "lm_head.weight" in found:  # some writers store the tied matrix twice
        if not np.array_equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]):
            raise InputError(
                f"{folder}: config.json ties the head to the embedding, but lm_head.weight is another matrix; "
                "set tie_word_embeddings to false"
            )
        del found["lm_head.weight"]
    problems = []
    if missing := sorted(set(wanted) - set(found)):
        hint = "; does config.json mean tie_word_embeddings = true?" if missing == ["lm_head.weight"] else ""
        problems.append(f"missing: {_some(missing)}{hint}")
    if unknown := sorted(set(found) - set(wanted)):
        problems.append(f"unknown: {_some(unknown)}")
    problems += [
        f"{name} is {list(found[name])}, needs to be {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ][:_SHOWN]
    if problems:
        raise InputError(f"{folder}: the tensors do not fit config.json: " + "; ".join(problems))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _at(tree: Params, path: Sequence[str]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


# ---------------------------------------------------------------------------------------------- writing


def save_params(
    folder: Path | str,
    params: Params,
    config: ModelConfig,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Writes a checkpoint folder: weights, config.json, the files `beside`, and sha256 sums in manifest.json.

    `dtype` is float32 or bfloat16.  The folder appears (and replaces an older one) only when it is complete.
    All processes take part, tensor by tensor; the first writes.
    """
    folder = Path(folder)
    if not is_first():
        for entry in table(config):
            jax.block_until_ready(pick(_at(params, entry.path), entry.index))
        return wait_for_all(f"{folder.name} was written")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shards = _shards(table(config), params, dtype, shard_bytes)
    sums = {name: _write(partial / name, _safetensors(shards[name], params, dtype)) for name in shards}
    files = {CONFIG: _json(to_hf_config(config) | {"dtype": dtype}), **(beside or {})}
    if len(shards) > 1:
        files[INDEX] = _json(_index(shards, params, dtype))
    sums |= {name: _write(partial / name, [content]) for name, content in files.items()}
    _write(partial / MANIFEST, [_json({"sha256": dict(sorted(sums.items()))})])
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)
    wait_for_all(f"{folder.name} was written")


def verify(folder: Path | str) -> list[str]:
    """What is wrong with the files of a folder by its manifest, one line each; empty when nothing is.

    Reads every file once.  A folder without a manifest (the original of a model) has nothing to compare.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        return []
    wanted: dict[str, str] = json.loads((folder / MANIFEST).read_text())["sha256"]
    problems = []
    for name, checksum in wanted.items():
        if not (folder / name).is_file():
            problems.append(f"{name} is missing")
        elif file_sha256(folder / name) != checksum:
            problems.append(f"{name} was changed")
    return problems


def _write(path: Path, blocks: Iterable[bytes | memoryview]) -> str:
    """Writes a file block by block; returns its sha256 sum."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in blocks:
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def _shards(entries: Sequence[Entry], params: Params, dtype: str, limit: int) -> dict[str, list[Entry]]:
    """Which tensors go to which file: in order, each file at most `limit` bytes unless one tensor is larger."""
    groups: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        more = _bytes(entry, params, dtype)
        if groups[-1] and size + more > limit:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += more
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}


def _index(shards: Mapping[str, Sequence[Entry]], params: Params, dtype: str) -> dict[str, Any]:
    total = sum(_bytes(entry, params, dtype) for entries in shards.values() for entry in entries)
    where = {entry.name: name for name, entries in shards.items() for entry in entries}
    return {"metadata": {"total_size": total}, "weight_map": where}


def _safetensors(entries: Sequence[Entry], params: Params, dtype: str) -> Iterator[bytes | memoryview]:
    """The blocks of one file: header, then one tensor after the other."""
    kind = _KINDS[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        begin, end = end, end + _bytes(entry, params, dtype)
        shape = stored_shape(entry, _at(params, entry.path).shape)
        header[entry.name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin on a multiple of eight
    yield len(text).to_bytes(8, "little") + text
    for entry in entries:
        stored = as_stored(np.asarray(pick(_at(params, entry.path), entry.index)), entry.inputs)
        stored = np.ascontiguousarray(stored.astype(_DTYPES[kind], copy=False))  # no copy when nothing changes
        yield stored.reshape(-1).view(np.uint8).data


def _bytes(entry: Entry, params: Params, dtype: str) -> int:
    shape = stored_shape(entry, _at(params, entry.path).shape)
    return math.prod(shape) * _DTYPES[_KINDS[dtype]].itemsize
