"""Builds a dataset for TensorFlow Datasets, without TensorFlow, and the card that tells what is in it.

    python launch/build_dataset.py carr_questions --source=data/rubrics.jsonl --out=data/sets
    python launch/build_dataset.py deepdive_questions --source=DIR --out=data/sets
    python launch/build_dataset.py sft_traces --source=traces.jsonl.gz --out=data/sets
    python launch/build_dataset.py built_in_world --config=configs/c_grpo_tiny.py --out=data/sets

--source is a file, a folder of files, or a split on the Hugging Face hub (hf:NAME/SPLIT): any shape that
carr_jax/data/rows.py or conversations.py knows.  The built-in world is that of the configuration.  A run takes
questions from it with --config.data.source=tfds --config.data.path=data/sets --config.data.name=carr_questions.
"""

import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from rich.console import Console

from carr_jax.command import OptionParser, end_well
from carr_jax.data.card import card_of
from carr_jax.judging import chosen_config
from carr_jax.records import InputError
from carr_jax.search.world import WorldConfig

NAMES = ("carr_questions", "deepdive_questions", "sft_traces", "built_in_world")


def parse(argv):
    """Raises InputError for what cannot be built."""
    options = OptionParser("build_dataset.py", __doc__)
    options.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    options.add_argument("--source", default="", help="file, folder or hf:NAME/SPLIT")
    options.add_argument("--out", type=Path, required=True, help="folder of datasets, TFDS's data_dir")
    given = options.own(argv)
    if (given.name == "built_in_world") == bool(given.source):
        raise InputError("--source belongs to every dataset but built_in_world; give it there and only there")
    return given


def builder_of(given, config):
    """Raises InputError when the extra is not installed."""
    try:
        from carr_jax.data.tfds_builders import builders
    except ImportError as error:
        raise InputError(f"{error}; pip install 'carr_jax[data]'") from None
    if given.name != "built_in_world":
        kinds = (builders.CarrQuestions, builders.DeepdiveQuestions, builders.SftTraces)
        kind = next(kind for kind in kinds if kind.name == given.name)
        return kind(given.source, data_dir=given.out)
    count, held_out = config.data.train_questions, config.data.held_out_questions
    questions = {"sft": count, "train": count, "held_out": held_out}
    world = WorldConfig(**config.world.to_dict())
    return builders.BuiltInWorld(world, {k: n for k, n in questions.items() if n}, data_dir=given.out)


def run(argv):
    given = parse(argv)
    builder = builder_of(given, chosen_config(argv))
    from carr_jax.data.tfds_builders.building import build

    folder = build(builder, shlex.join(["python", *argv]))
    console = Console(highlight=False)
    for split, info in builder.info.splits.items():
        console.print(f"{split}: {info.num_examples:,}")
    console.print(f"{folder} is told of in {card_of(folder.parent)}", markup=False, soft_wrap=True)


def main(argv):
    return end_well(lambda: run(argv), argv[0], "the same command begins again")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
