"""Builds a search index on disk from page files, for config.search.index.path.

    python launch/build_index.py pages.jsonl.gz --out=data/index
    python launch/build_index.py part-*.jsonl --out=data/index --dense-model=models/my-encoder

PAGES are JSON lines, gzipped or not: {"url", "title", "text"}, {"docid", "text", "url"} or {"id", "contents"}
(carr_jax/search/dump.py).  Rows that hold no page are left out and listed in OUT/rejected.jsonl, up to one in a
hundred.  Memory does not grow with the pages.  OUT appears when the index is whole: after a kill, the same
command begins again.  --dense-model is a Sentence-Transformers folder; pages are then searched by meaning too.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # works from a clone that is not installed

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from carr_jax.command import OptionParser, end_well
from carr_jax.records import InputError
from carr_jax.search.building import build
from carr_jax.search.dense import load_encoder, model_sha256


def parse(argv):
    """Raises InputError for what cannot be built."""
    options = OptionParser("build_index.py", __doc__)
    options.add_argument("pages", metavar="PAGES", type=Path, nargs="+", help="page files, .jsonl or .jsonl.gz")
    options.add_argument("--out", type=Path, required=True, help="the folder to make")
    options.add_argument("--dense-model", default="", metavar="DIR", help="also search by meaning, with this")
    given = options.parse_args(argv[1:])
    if missing := [str(path) for path in given.pages if not path.is_file()]:
        raise InputError(f"there is no file {', '.join(missing)}")
    return given


def run(argv):
    given = parse(argv)
    there = given.out.exists()
    encoder = load_encoder(given.dense_model) if given.dense_model else None
    sha256 = model_sha256(Path(given.dense_model)) if given.dense_model else ""
    console = Console(highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("looking at the rows", total=None)

        def progress(done, total):
            finished = bar.tasks[task].finished
            if finished and done < total:  # the second pass
                bar.reset(task, description="indexing")
            bar.update(task, completed=done, total=total)

        manifest = build(given.pages, given.out, progress, encoder=encoder, dense_sha256=sha256)
    size = sum(path.stat().st_size for path in given.out.rglob("*") if path.is_file())
    how = "was there already" if there else "is whole"
    console.print(f"{given.out} {how}: {manifest['pages']:,} pages, {size / 1e6:,.1f} MB", soft_wrap=True)
    if manifest["rejected"]:
        console.print(
            f"{manifest['rejected']:,} rows were left out, see {given.out / 'rejected.jsonl'}",
            style="yellow",
            soft_wrap=True,
        )


def main(argv):
    return end_well(lambda: run(argv), argv[0], "the same command begins again")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
