"""Brings weights from one folder to another and checks them.

    python launch/convert.py --from=Qwen3-4B --to=policies/qwen3_4b
    python launch/convert.py --from=runs/c_grpo --to=served/c_grpo

--from is a Hugging Face folder of a Qwen3 (dense or mixture of experts, one file or shards), or a run folder
whose newest checkpoint is exported.  --to is a new folder that serves both sides: give it to
--config.model.policy, or load it with transformers or SGLang.  It appears only when it is complete.
"""

import argparse
import difflib
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from carr_jax.command import end_well
from carr_jax.records import InputError

DTYPES = ("bfloat16", "float32")
MODEL_FILES = (("config.json",), ("tokenizer.json",), ("model.safetensors", "model.safetensors.index.json"))


class Parser(argparse.ArgumentParser):
    """Errors become one line, as those of the other commands."""

    def error(self, message):
        raise InputError(f"{message}; --help tells more")


def parser():
    form = argparse.RawDescriptionHelpFormatter
    options = Parser(prog="convert.py", description=__doc__, formatter_class=form, allow_abbrev=False)
    options.add_argument("--from", dest="source", metavar="DIR", help="model folder, or run folder")
    options.add_argument("--to", dest="target", metavar="DIR", help="folder to write; must not exist yet")
    options.add_argument(
        "--dtype", default="bfloat16", metavar="|".join(DTYPES), help="type of the weights (default: bfloat16)"
    )
    options.add_argument("--step", metavar="N", help="checkpoint of a run (default: the newest)")
    options.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="first see whether the model predicts a short text, which catches weights in the wrong place; "
        "needs memory for the model in float32 (default: yes for a model folder, no for a run)",
    )
    options.add_argument(
        "--text",
        metavar="FILE",
        help="check with this text (default: sample.txt of the folder if there is one, or plain English)",
    )
    return options


def parse(arguments):
    """The options of a conversion, as the fields of `carr_jax.convert.Conversion`.

    Raises InputError with everything that is wrong, before any costly work.
    """
    options, unknown = parser().parse_known_args(arguments)
    found = [f"unknown option {name}{nearest(name)}" for name in unknown]
    source, target = (Path(x) if x else None for x in (options.source, options.target))
    run = source is not None and (source / "checkpoints").is_dir()
    check = not run if options.check is None else options.check
    found += source_problems(source, run) + target_problems(target)
    if options.dtype not in DTYPES:
        found.append(f"--dtype={options.dtype} is not one of {', '.join(DTYPES)}")
    if options.step is not None and not options.step.isdecimal():
        found.append(f"--step={options.step} is not a number")
    if options.step is not None and source is not None and not run:
        found.append("--step is for a run folder")
    if options.text and not check:
        found.append("--text is read by --check only")
    if options.text and not Path(options.text).is_file():
        found.append(f"--text={options.text}: there is no such file")
    if found:
        raise InputError("cannot start: " + "; ".join(found))
    step = None if options.step is None else int(options.step)
    text = Path(options.text) if options.text else None
    return dict(source=source, target=target, dtype=options.dtype, check=check, step=step, text=text)


def source_problems(source, run):
    if source is None:
        return ["--from is missing, for example --from=Qwen3-4B"]
    if not source.is_dir():
        return [f"--from={source}: there is no such folder"]
    wanted = (("config.json",),) if run else MODEL_FILES
    lacks = [" or ".join(names) for names in wanted if not any((source / name).is_file() for name in names)]
    if not lacks:
        return []
    if run:
        return [f"--from={source} is a run without config.json"]
    return [f"--from={source} is neither a run (no checkpoints) nor a model (no {', no '.join(lacks)})"]


def target_problems(target):
    if target is None:
        return ["--to is missing, for example --to=policies/qwen3_4b"]
    if target.exists():
        return [f"--to={target} exists already; choose a new folder"]
    parent = next((p for p in target.absolute().parents if p.exists()), None)
    return [] if parent and parent.is_dir() else [f"--to={target}: {parent} is no folder"]


def nearest(name):
    """A hint at the option that was probably meant."""
    known = re.findall(r"--[a-z-]+", parser().format_usage())
    near = difflib.get_close_matches(name.partition("=")[0], known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def run(arguments):
    fields = parse(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # this is work of the host
    from carr_jax import convert  # imports jax, so only after the command line was understood

    try:
        convert.convert(convert.Conversion(**fields))
    except OSError as error:
        raise InputError(f"{error.filename or fields['target']}: {error.strerror}") from error


def main(argv):
    return end_well(lambda: run(argv[1:]), argv[0], "the folder was not written")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
