"""What can go wrong when a service is called: with one call, or for good."""

from __future__ import annotations


class CallError(Exception):
    """A call that gave no answer.  `kind` is short and stable, for counting; the text never holds a key.

    `retry` says whether the same call may succeed later, `retry_after` how many seconds the server asks to
    wait, `billed` whether the provider may charge for it all the same, and `said` is what the server itself
    said.
    """

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        retry: bool = False,
        retry_after: float | None = None,
        billed: bool = False,
        said: str = "",
    ) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.retry, self.retry_after, self.billed, self.said = kind, retry, retry_after, billed, said


class CannotGoOn(Exception):
    """No later call can succeed either: what has been done should be saved, and the run end.

    `remedy` is what a person can do, where that is known here.
    """

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


class BudgetSpent(CannotGoOn):
    """The next call could cost more than is left of the budget."""


class NoKeyLeft(CannotGoOn):
    """Every key of every endpoint was refused."""


class NotRecorded(CannotGoOn):
    """A cache that only replays has no answer to this request."""


class NotWritten(CannotGoOn):
    """A cache or the account book cannot be read or written any more, as on a full disk."""
