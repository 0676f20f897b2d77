"""The command line of every script in launch/: parse, preflight, run; what goes wrong is one clear line."""

from __future__ import annotations

import argparse
import difflib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from absl import flags
from ml_collections import ConfigDict, config_flags

from carr_jax.config import flatten, rl, sft
from carr_jax.preflight import preflight
from carr_jax.records import InputError


def parse(argv: list[str]) -> tuple[ConfigDict, Path]:
    """Reads `--config=FILE --config.section.field=value --workdir=DIR`.

    Raises InputError with one line that says what is wrong and what to do.
    """
    values = _read(argv)
    name = Path(config_flags.get_config_filename(values["config"])).stem
    return values.config, Path(values.workdir or f"runs/{name}")


def cluster(argv: list[str], environment: Mapping[str, str]) -> dict | None:
    """Arguments of `distributed.initialize` when this process is to be one of several, else None.

    Raises InputError for flags that contradict each other.
    """
    values = _read(argv)
    given = {name: values[name].value for name in _NUMBERED}
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if len(missing) == len(given):
        in_slurm = int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1
        return {} if values.distributed or in_slurm else None
    if missing:
        raise InputError(f"--coordinator, --processes and --process belong together; give {', '.join(missing)}")
    if values.distributed:
        raise InputError("give either --distributed or --coordinator, --processes and --process")
    host, _, port = values.coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--coordinator={values.coordinator} is no HOST:PORT, such as 10.0.0.1:8476")
    if not 0 <= values.process < values.processes:
        raise InputError(
            f"--process={values.process} must lie between 0 and {values.processes - 1}, for --processes="
            f"{values.processes}"
        )
    return given


class OptionParser(argparse.ArgumentParser):
    """The options that a script of launch/ has beside a configuration; wrong ones are an InputError, one line.

    `doc` is the script's documentation, shown by --help.
    """

    def __init__(self, script: str, doc: str | None) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=script, description=doc, formatter_class=form, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; --help tells more")

    def own(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options in `argv` but those of the configuration.  Raises InputError."""
        return self.parse_args([a for a in argv[1:] if not a.startswith("--config")])


_NUMBERED = ("coordinator", "processes", "process")


def _read(argv: list[str]) -> flags.FlagValues:
    """The parsed command line.  Raises InputError."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "a file in configs/", values, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "run folder", flag_values=values)
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0", flag_values=values)
    flags.DEFINE_integer("processes", None, "how many processes train together", flag_values=values)
    flags.DEFINE_integer("process", None, "which of them this is, from 0", flag_values=values)
    flags.DEFINE_boolean("distributed", False, "ask Slurm or the TPU pod for these three", flag_values=values)
    example = f"for example: python {argv[0]} --config=configs/c_grpo_tiny.py --workdir=runs/tiny"
    files = [a.partition("=")[2] for a in argv if a.startswith("--config=")]
    if not files:
        raise InputError(f"no configuration was given; {example}")
    if not Path(files[-1]).is_file():
        raise InputError(f"--config={files[-1]}: there is no such file; {example}")
    try:
        rest = values(argv)
    except flags.UnrecognizedFlagError as error:
        raise InputError(f"unknown option --{error.flagname}; {example}") from None
    except (KeyError, AttributeError) as error:
        raise InputError(_unknown_key(argv) or f"unknown configuration key {_one_line(error)}") from None
    except (flags.Error, TypeError, ValueError, SyntaxError) as error:
        raise InputError(_one_line(error)) from None
    if rest[1:]:
        raise InputError(f"unexpected argument {rest[1]!r}; options look like --config.train.steps=10")
    return values


def _unknown_key(argv: list[str]) -> str:
    """What is wrong with the first option that is no field, with the nearest; empty when all are fields."""
    fields = list({**flatten(rl()), **flatten(sft())})
    names = [a.removeprefix("--config.").partition("=")[0] for a in argv if a.startswith("--config.")]
    unknown = next((name for name in names if name not in fields), None)
    if unknown is None:
        return ""
    if "lora" in unknown.lower():
        return f"config.{unknown}: LoRA is not part of this recipe, all weights are trained"
    near = difflib.get_close_matches(unknown, fields, n=1)
    return f"unknown configuration key config.{unknown}" + (f"; did you mean config.{near[0]}?" if near else "")


def _one_line(error: BaseException) -> str:
    """The message of an exception as one line, without the quotes that KeyError adds."""
    text = str(error.args[0]) if error.args else type(error).__name__
    return " ".join(text.replace("\\n", " ").replace("\\'", "'").split()).strip("'\"")


def main(run: Callable[[ConfigDict, Path], None], argv: list[str]) -> int:
    """Entry point of the scripts in launch/ that train: parse, preflight, run.  Returns the exit status.

    One of several processes does not return after a failure: the others would wait for it.
    """
    leave = None

    def work() -> None:
        nonlocal leave
        config, workdir = parse(argv)
        joins = cluster(argv, os.environ)
        missing = preflight(config, workdir)
        if joins is not None and "rollout" in config and config.rollout.engine == "embedded":
            missing.append("the embedded engine runs in one process; give --config.rollout.engine=sglang")
        if missing:
            raise InputError("cannot start: " + "; ".join(missing))
        if joins is not None:
            from carr_jax import distributed  # imports jax, so only after the command line was understood

            distributed.initialize(**joins)
            leave = distributed.leave
        run(config, workdir)

    try:
        status = end_well(work, argv[0], "the same command resumes from the last checkpoint")
    except Exception:
        if leave is None:
            raise
        traceback.print_exc()
        status = 1
    if status and leave is not None:
        leave(status)
    return status


def end_well(work: Callable[[], None], script: str, after_interrupt: str) -> int:
    """Runs `work`; bad input and Ctrl-C end in one line.  Returns the exit status."""
    try:
        work()
    except InputError as error:
        print(f"{Path(script).name}: {error}")
        return 2
    except KeyboardInterrupt:
        print(f"{Path(script).name}: interrupted; {after_interrupt}")
        return 130
    return 0
