"""Serves rewards over HTTP, in the protocol of the public CaRR reward server and for whole groups.

    python launch/serve_rewards.py --config=configs/c_grpo_4b.py --port=8888

POST /evaluate and /evaluate_batch, GET /health and /metrics: see carr_jax/rewards/server.py.  To listen on an
address that others reach, set CARR_REWARD_TOKEN; clients then send `Authorization: Bearer ...`.  SIGTERM ends
it once everything that was asked is answered.  The judge is that of the configuration, without one the exact
judge; what it replied and cost is kept in --workdir.
"""

import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from carr_jax.command import OptionParser, end_well
from carr_jax.judging import chosen_judge, judge_name, make_judge
from carr_jax.records import InputError
from carr_jax.rewards.carr import READERS
from carr_jax.rewards.server import TOKEN_VARIABLE, Limits, make_app
from carr_jax.serving import check_exposure, serve


def parse(argv):
    """Raises InputError for what cannot be served."""
    options = OptionParser("serve_rewards.py", __doc__)
    limits = Limits()
    options.add_argument("--workdir", type=Path, default=Path("runs/rewards"), help="default: runs/rewards")
    options.add_argument("--citations", default="tolerant", metavar="|".join(READERS), help="how they are read")
    options.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    options.add_argument("--port", type=int, default=8888, help="default: 8888; 0 = any that is free")
    options.add_argument("--evaluations", type=int, default=limits.evaluations, help="judged at a time")
    options.add_argument("--waiting", type=int, default=limits.waiting, help="may wait; others are refused")
    options.add_argument("--seconds", type=float, default=limits.seconds, help="most that one request may take")
    given = options.own(argv)
    if given.citations not in READERS:
        raise InputError(f"--citations={given.citations} is not one of {', '.join(READERS)}")
    if not 0 <= given.port < 65536:
        raise InputError(f"--port={given.port} must lie between 0 and 65535")
    if given.evaluations < 1 or given.waiting < 0 or not given.seconds > 0:
        raise InputError("--evaluations and --seconds must be positive, --waiting not negative")
    check_exposure(given.host, os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE)
    return given


def run(argv):
    given = parse(argv)
    config = chosen_judge(argv, given.workdir)
    limits = Limits(given.evaluations, given.waiting, given.seconds)

    def ready(port):
        how = f"judge {judge_name(config)}, citations {given.citations}"
        print(f"ready: http://{given.host}:{port}/evaluate ({how})")
        sys.stdout.flush()

    async def main():
        async with make_judge(config, given.workdir) as judge:
            app = make_app(judge, given.citations, os.environ.get(TOKEN_VARIABLE, ""), limits)
            await serve(app, given.host, given.port, ready)
        print("closed: all that was asked is answered")

    asyncio.run(main())


def main(argv):
    return end_well(lambda: run(argv), argv[0], "what was in work is lost")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
