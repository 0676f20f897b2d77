"""From the learner to the engines: each version of the policy is a folder that they load."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carr_jax.rollout.engine import Engine, WeightUpdateError


@dataclass(frozen=True)
class WeightSync:
    """Writes versions of the policy where engines read them, and has them read.

    `export(folder, params)` writes a Hugging Face folder, whole or not at all.  `root` must be a place that the
    servers see under the same path: a RAM disk when they run on this machine, a shared file system, or else
    `push` brings it there: a command such as "rsync -a {folder} host:/dev/shm/policy/", run without a shell
    with the name of the folder put in.  The newest two versions are kept: the older one is what servers go back
    to when an update fails.
    """

    root: Path
    export: Callable[[Path, Any], None]
    push: str = ""

    async def write(self, params: Any, version: int) -> Path:
        """The folder of a version, where servers can read it.  Raises WeightUpdateError when `push` fails."""
        folder = self.folder(version)
        await asyncio.to_thread(self.export, folder, params)
        if self.push:
            await self._push(folder)
        return folder

    async def publish(self, engine: Engine, params: Any, version: int) -> None:
        """All later tokens come from `params`.  Raises WeightUpdateError, and then no server has changed."""
        folder = await self.write(params, version)
        await engine.update_weights(folder, version)
        for old in self.root.glob("version_*"):
            if old.name not in (folder.name, self.folder(version - 1).name):
                await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)

    def folder(self, version: int) -> Path:
        return self.root / f"version_{version:06d}"

    async def _push(self, folder: Path) -> None:
        command = [part.replace("{folder}", str(folder)) for part in shlex.split(self.push)]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise WeightUpdateError(f"config.rollout.push: {error}") from error
        _, said = await process.communicate()
        if process.returncode:
            last = said.decode(errors="replace").strip()[-300:]
            raise WeightUpdateError(f"config.rollout.push ended with status {process.returncode}: {last}")
