"""Calls, tokens and money: what was spent on whom and for what, and the budget that is not overspent."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import operator
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carr_jax.calls.errors import BudgetSpent, NotWritten
from carr_jax.records import InputError

_MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """US dollars for a million tokens: of the prompt, of what the provider had cached of it, of the reply."""

    prompt: float = 0.0
    cached: float = 0.0
    completion: float = 0.0

    def cost(self, prompt: int, cached: int, completion: int) -> float:
        """US dollars; `cached` tokens are a part of the `prompt` tokens."""
        fresh = prompt - cached
        return (fresh * self.prompt + cached * self.cached + completion * self.completion) / _MILLION


class Usage(Protocol):
    """The tokens of a reply."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Spent:
    """The sum of some calls."""

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(operator.add, vars(self).values(), vars(other).values()))


class Ledger:
    """The account book at `path`: one JSON line for each paid call, so that a resumed run knows what it spent.

    `budget_usd` is the most that all calls together may cost, 0 for no limit.  A line counts once its newline
    is in the file; a kill inside a write leaves a last line without one, which is cut off.  Raises InputError,
    naming the line, for a file that holds anything else.  It is open from the first entry to `close`.
    """

    def __init__(self, path: Path, prices: Prices, budget_usd: float = 0.0) -> None:
        self.path, self.prices, self.budget_usd = Path(path), prices, budget_usd
        self.by_purpose: dict[tuple[str, str], Spent] = defaultdict(Spent)  # of (model, purpose)
        self._held, self._holders = 0.0, 0
        self._file: io.FileIO | None = None
        self._released = asyncio.Event()
        for (model, purpose), spent in _read(self.path):
            self.by_purpose[model, purpose] += spent
        self.spent_usd = sum(spent.cost_usd for spent in self.by_purpose.values())

    @contextlib.asynccontextmanager
    async def hold(self, most_usd: float) -> AsyncIterator[None]:
        """Room in the budget for a call that costs `most_usd` at most.

        Where there is none, calls in flight may still turn out cheaper than they might be, and are waited for.
        Raises BudgetSpent when there is no room and nothing left to wait for.
        """
        while not self._has_room(most_usd):
            if not self._holders:
                raise BudgetSpent(
                    f"${self.spent_usd:.4f} of the budget of ${self.budget_usd:g} are spent, and the next call "
                    f"may cost ${most_usd:.4f}"
                )
            await self._released.wait()
        self._held, self._holders = self._held + most_usd, self._holders + 1
        try:
            yield
        finally:
            self._holders -= 1
            self._held = self._held - most_usd if self._holders else 0.0
            self._released.set()
            self._released = asyncio.Event()

    def _has_room(self, usd: float) -> bool:
        return not self.budget_usd or self.spent_usd + self._held + usd <= self.budget_usd

    def record(self, purpose: str, model: str, reply: Usage) -> float:
        """Enter a paid reply of a language model; returns what it cost in US dollars.  Raises NotWritten."""
        tokens = (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens)
        cost = self.prices.cost(*tokens)
        self.enter(purpose, model, Spent(1, *tokens, cost))
        return cost

    def enter(self, purpose: str, whom: str, spent: Spent) -> None:
        """Enter what a call took; `whom` is the model, or the provider.  Raises NotWritten."""
        self.by_purpose[whom, purpose] += spent
        self.spent_usd += spent.cost_usd
        line = json.dumps({"model": whom, "purpose": purpose, **vars(spent)}) + "\n"
        try:
            if self._file is None:
                self._file = io.FileIO(self.path, "a")
            self._file.write(line.encode())  # one write: a kill can only tear the end
        except OSError as error:
            raise NotWritten(f"{self.path}: a call was paid and cannot be entered ({error})") from error

    def close(self) -> None:
        """Give the file back; a further entry opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _read(path: Path) -> list[tuple[tuple[str, str], Spent]]:
    """The whole lines of an account book; a torn last one is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.exists() else b""
    if not data.endswith(b"\n") and data:
        os.truncate(path, data.rfind(b"\n") + 1)
    entries = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            owner = (row.pop("model"), row.pop("purpose"))
            entries.append((owner, Spent(**row) + Spent()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path} line {number} is no entry of an account book: {error!r}") from error
    return entries
