"""Checkpoints of a run (orbax)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from carr_jax.records import InputError


class Checkpoints:
    """The newest `keep` checkpoints of a run, in one folder.

    A save is written beside the others and takes its name only when complete; older ones are deleted after
    that.  So a process killed at any instant leaves the last complete checkpoint, and what it left unfinished
    is ignored and cleared by the next process.
    """

    def __init__(self, directory: Path | str, keep: int) -> None:
        self._directory = Path(directory).absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def save(self, step: int, state: Any, extra: dict[str, Any]) -> None:
        """Writes `state` (a pytree of arrays) and `extra` (JSON values) and returns when they are on disk.

        Raises ValueError when `step` is not newer than the latest checkpoint.
        """
        latest = self.latest()
        if latest is not None and step <= latest:
            raise ValueError(f"checkpoint {step} in {self._directory} would not be newer than {latest}")
        header = {"extra": extra, "leaves": _leaves(state)}
        self._manager.save(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), header=ocp.args.JsonSave(header)),
            force=True,
        )

    def latest(self) -> int | None:
        """The newest complete checkpoint."""
        return self._manager.latest_step()

    def kept(self) -> list[int]:
        """All complete checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def restore(self, step: int, abstract_state: Any) -> tuple[Any, dict[str, Any]]:
        """(state, extra) of a checkpoint, each leaf bit for bit and with the sharding of `abstract_state`.

        `abstract_state` is a state or its jax.ShapeDtypeStructs.  Raises InputError with one line when the
        checkpoint has other leaves, shapes or dtypes.
        """
        header = _header(self._manager, step)
        wanted = _leaves(abstract_state)
        if header["leaves"] != wanted:
            raise InputError(
                f"checkpoint {step} in {self._directory} does not fit this run: "
                f"{_difference(header['leaves'], wanted)}; use the configuration that made it, or a new folder"
            )
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), abstract_state
        )
        restored = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))
        return restored.state, header["extra"]

    def close(self) -> None:
        self._manager.close()


def restore_params(directory: Path | str, step: int | None, abstract_params: Any) -> tuple[int, Any]:
    """(step, parameters) of a checkpoint, the newest when `step` is None; the moments are not read.

    Nothing in the folder is changed, so the run may be going on.  `abstract_params` are jax.ShapeDtypeStructs
    with shardings.  Raises InputError for a step that is not there, or with other parameters.
    """
    options = ocp.CheckpointManagerOptions(
        create=False, cleanup_tmp_directories=False, enable_async_checkpointing=False
    )
    manager = ocp.CheckpointManager(Path(directory).absolute(), options=options)
    if not (steps := sorted(manager.all_steps())):
        raise InputError(f"{directory}: there is no complete checkpoint yet")
    step = steps[-1] if step is None else step
    if step not in steps:
        raise InputError(f"{directory}: there is no checkpoint {step}, only {', '.join(map(str, steps))}")
    wanted = _leaves({"params": abstract_params})
    saved = {k: v for k, v in _header(manager, step)["leaves"].items() if k.startswith("params/")}
    if saved != wanted:
        raise InputError(
            f"checkpoint {step} in {directory} is not of the run's architecture: {_difference(saved, wanted)}"
        )
    target = {"params": abstract_params}
    how = ocp.args.PyTreeRestore(
        item=target, restore_args=ocp.checkpoint_utils.construct_restore_args(target), partial_restore=True
    )
    return step, manager.restore(step, args=ocp.args.Composite(state=how)).state["params"]


def _header(manager: ocp.CheckpointManager, step: int) -> dict[str, Any]:
    return manager.restore(step, args=ocp.args.Composite(header=ocp.args.JsonRestore())).header


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _leaves(tree: Any) -> dict[str, str]:
    """Leaf name -> "float32[3,4]"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_name(path): f"{x.dtype}[{','.join(map(str, x.shape))}]" for path, x in leaves}


def _difference(saved: dict[str, str], wanted: dict[str, str]) -> str:
    """The first leaf that differs, in words; parameters come first in a train state."""
    key = next(k for k in {**wanted, **saved} if saved.get(k) != wanted.get(k))
    return f"{key} is {saved.get(key, 'absent')} there and {wanted.get(key, 'absent')} here"
