"""Replies on disk by the content of what was asked; a run that is repeated asks nobody.

Values are JSON, and nothing that is read is ever unpickled.  `calls/store.py` says where the file may lie.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from carr_jax.calls.errors import NotRecorded
from carr_jax.calls.store import Store
from carr_jax.llm.messages import Reply
from carr_jax.records import InputError


class ReplyCache:
    """A map from `Request.key` to the reply that could be used.  With `replay` nothing new is ever asked.

    Raises InputError as `Store` does, and with `replay` when the file is not there.
    """

    def __init__(self, path: Path, replay: bool = False) -> None:
        self.path, self.replay = Path(path), replay
        if replay and not self.path.is_file():
            raise InputError(f"{path}: there are no replies to replay; record a run first")
        self._store = Store(self.path, "replies", "key TEXT PRIMARY KEY, reply TEXT NOT NULL")

    def get(self, key: str) -> Reply | None:
        """The reply to a request, marked as cached.  Raises NotRecorded when there is none to replay."""
        if (row := self._store.get(key)) is not None:
            reply = Reply(**json.loads(row[1]))
            calls = tuple(map(tuple, reply.calls))  # JSON knows lists only
            return dataclasses.replace(reply, calls=calls, cached=True, cost_usd=0.0, latency_s=0.0)
        if self.replay:
            raise NotRecorded(f"{self.path} has no reply to a request of this run, and only replays")
        return None

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply.  Only what could be used belongs here: what could not is asked again."""
        self._store.put((key, json.dumps(dataclasses.asdict(reply))))

    def __len__(self) -> int:
        return len(self._store)

    def close(self) -> None:
        self._store.close()
