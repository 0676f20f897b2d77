"""A client of the stub, as the tests of the client need it."""

import asyncio
import contextlib
import dataclasses

from stub import FakeTime

from carr_jax.calls.ledger import Ledger, Prices
from carr_jax.calls.patience import Patience
from carr_jax.llm.client import ChatClient
from carr_jax.llm.messages import Request

REQUEST = Request((("user", "u"),), 50)
STRUCTURED = dataclasses.replace(REQUEST, schema={"type": "object"})
FREE = Prices()
KEYS = {"K1": "secret-1", "K2": "secret-2", "K3": "secret-3"}


def mind(body):
    return "hello"


@contextlib.asynccontextmanager
async def asking(tmp_path, *endpoints, prices=FREE, budget=0.0, time=None, **options):
    """A client with a ledger of its own, and fake time unless told otherwise."""
    ledger = Ledger(tmp_path / "ledger.jsonl", prices, budget)
    time = time or FakeTime()
    async with ChatClient("m", endpoints, KEYS, ledger, Patience(**options), time.timing()) as client:
        client.time = time
        yield client


def run(test):
    asyncio.run(test())
