"""Serves the browser tools over HTTP, in the protocol of the public CaRR tool server.

    python launch/serve_tools.py --config=configs/c_grpo_4b.py --config.search.index.path=data/index --port=7230

POST /, GET /health and /metrics: see carr_jax/search/server.py.  What the tools reach is what the
configuration's search says, the web included, whose keys, cache and budget are then this server's.  A run uses
the server with config.search.source=server.  To listen on an address that others reach, set CARR_TOOLS_TOKEN;
clients then send `Authorization: Bearer ...`.  SIGTERM ends it once everything that was asked is answered.
Sessions stand in --workdir and are there again after a restart.
"""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from carr_jax.command import OptionParser, end_well
from carr_jax.judging import chosen_search
from carr_jax.records import InputError
from carr_jax.search.server import TOKEN_VARIABLE, Limits, make_app
from carr_jax.search.sessions import Sessions
from carr_jax.serving import check_exposure, serve
from carr_jax.task import ready, served_tools


def parse(argv):
    """Raises InputError for what cannot be served."""
    options = OptionParser("serve_tools.py", __doc__)
    limits = Limits()
    options.add_argument("--workdir", type=Path, default=Path("runs/tools"), help="default: runs/tools")
    options.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    options.add_argument("--port", type=int, default=7230, help="default: 7230; 0 = any that is free")
    options.add_argument("--calls", type=int, default=limits.calls, help="executed at a time")
    options.add_argument("--sessions", type=int, default=100_000, help="most that are kept")
    options.add_argument("--idle", type=float, default=3600.0, help="seconds until an unused one is forgotten")
    given = options.own(argv)
    if not 0 <= given.port < 65536:
        raise InputError(f"--port={given.port} must lie between 0 and 65535")
    if given.calls < 1 or given.sessions < 1 or not given.idle > 0:
        raise InputError("--calls, --sessions and --idle must be positive")
    check_exposure(given.host, os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE)
    return given


def run(argv):
    given = parse(argv)
    tools = served_tools(chosen_search(argv, given.workdir))

    def listening(port):
        print(f"ready: http://{given.host}:{port}/")
        sys.stdout.flush()

    async def main():
        with Sessions(given.workdir / "sessions.sqlite", given.idle, given.sessions) as sessions:
            async with ready(tools, given.workdir):
                limits = Limits(calls=given.calls)
                app = make_app(tools, sessions, os.environ.get(TOKEN_VARIABLE, ""), limits)
                await serve(app, given.host, given.port, listening)
        print("closed: all that was asked is answered")

    asyncio.run(main())


def main(argv):
    return end_well(lambda: run(argv), argv[0], "sessions are kept")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
