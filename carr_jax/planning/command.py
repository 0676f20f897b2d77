"""The command line of launch/plan.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NoReturn

from carr_jax import command
from carr_jax.config import problems
from carr_jax.planning.topology import Topology, parse, prepare
from carr_jax.records import InputError

EXAMPLE = "python launch/plan.py --config=configs/c_grpo_tiny.py --topology=cpu:4"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; for example: {EXAMPLE}")


def main(argv: list[str]) -> int:
    """Exit status: 0 the step fits, 1 it does not, 2 the command cannot be carried out."""
    as_json = "--json" in argv
    try:
        options, rest = _options().parse_known_args(argv)
        if options.table:
            from carr_jax.planning.table import write_table

            return write_table(Path(options.table), Path(argv[0]))
        if not options.topology:
            raise InputError(f"no --topology was given; for example: {EXAMPLE}")
        return _plan(parse(options.topology), rest, options.json)
    except InputError as error:
        print(f"{Path(argv[0]).name}: {error}")
        if as_json:
            print(json.dumps({"error": str(error), "fits": False, "peak_gib": None}))
        return 2


def _options() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--topology", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--table", default="")
    return parser


# Where the data lies and who samples does not matter to the shape of a step.
_WITHOUT_SHAPE = ("config.data.", "config.rollout.engine=sglang needs")


def _plan(topology: Topology, rest: list[str], as_json: bool) -> int:
    config, _ = command.parse(rest)
    if wrong := [p for p in problems(config) if not p.startswith(_WITHOUT_SHAPE)]:
        raise InputError("cannot plan: " + "; ".join(wrong))
    prepare(topology)  # before the first import of jax
    from carr_jax.planning.plan import make_plan, to_json
    from carr_jax.planning.show import show

    plan = make_plan(config, topology)
    show(plan, next(a.partition("=")[2] for a in rest if a.startswith("--config=")))
    if as_json:
        print(json.dumps(to_json(plan)))
    return 0 if plan.fits else 1
