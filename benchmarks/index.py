"""The search index at size: `python benchmarks/index.py` (1 million pages: about ten minutes and 4 GB of disk).

Pages of about 1 KB with the word frequencies of a natural language (Zipf) are written, indexed by
`carr_jax.search.building`, and searched for three to eight words of one of them: ten results with snippets.
Each part is a process of its own.  Prints a table and ends with status 1 when a bar is missed.

    build     wall seconds, and CPU seconds over all threads
    memory    peak MiB of the build above a build of a hundred pages, and per page
    query     median and 99th percentile in ms, after as many queries to warm up: of words that stand on at most
              a tenth of the pages, as in most queries
    running   the same for any words of a page, every other of which is one like "the" or "of"
    open      median ms of a page by its address
    resident  MiB of the searching process, files that the system maps for it included

Bars: median query 2 ms, 99th percentile 15 ms (no bar for running text), memory of the build no worse than
linear in the pages.
"""

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

VOCABULARY, WORDS, QUERIES = 300_000, 108, 2000
MEDIAN_MS, P99_MS = 2.0, 15.0
LETTERS = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))


def words():
    """Distinct words, the frequent ones short."""
    rng = np.random.default_rng(0)
    made = {}
    while len(made) < VOCABULARY:
        length = 2 + min(12, int(np.log2(1 + len(made)) / 2) + int(rng.integers(0, 4)))
        made["".join(LETTERS[rng.integers(0, 26, length)])] = None
    return np.array(list(made))


def write_pages(path, count):
    """JSON lines of about 1 KB each."""
    rng, vocabulary = np.random.default_rng(count), words()
    weights = 1 / np.arange(2.7, VOCABULARY + 2.7)
    cumulative = np.cumsum(weights / weights.sum())
    with path.open("w") as file:
        for start in range(0, count, 10_000):
            drawn = vocabulary[np.searchsorted(cumulative, rng.random((min(10_000, count - start), WORDS)))]
            for i, page in enumerate(drawn.tolist(), start):
                sentences = (" ".join(page[k : k + 15]).capitalize() + "." for k in range(3, WORDS, 15))
                row = {"url": f"https://pages.example/{i}", "title": " ".join(page[:3])}
                file.write(json.dumps({**row, "text": " ".join(sentences)}) + "\n")


def memory(field):
    """MiB of this process, from Linux's own books."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def build_one(pages, folder):
    from carr_jax.search.building import build

    start = time.monotonic()
    build([pages], folder)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_s": time.monotonic() - start,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mib": memory("VmHWM"),
        "disk_mb": sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6,
    }


def search_one(pages, folder):
    from carr_jax.search.index import Index

    rng = random.Random(1)
    with Index(folder) as index:
        rows = []
        with pages.open() as file:
            for line in file:
                if rng.random() < 4 * QUERIES / len(index) or len(index) < 4 * QUERIES:
                    rows.append(json.loads(line))
        chosen = [rng.choice(rows) for _ in range(2 * QUERIES)]
        common = common_words(index, rows)
        took = {}
        for kind, left_out in (("content", common), ("running", set())):
            texts = [[w for w in r["text"].split() if w.strip(".").lower() not in left_out] for r in chosen]
            queries = [" ".join(rng.sample(words, min(len(words), rng.randint(3, 8)))) for words in texts]
            took[kind] = [timed(index.rank, query, 10) for query in queries][QUERIES:]
        opened = [timed(index.lookup, row["url"]) for row in chosen[:QUERIES]]
        return {
            "median_ms": float(np.median(took["content"])),
            "p99_ms": float(np.percentile(took["content"], 99)),
            "running_ms": float(np.median(took["running"])),
            "running_p99_ms": float(np.percentile(took["running"], 99)),
            "open_ms": float(np.median(opened)),
            "resident_mib": memory("VmRSS"),
            "segments": index.ranker.searcher.num_segments,
        }


def common_words(index, rows):
    """Words that stand on more than a tenth of the pages, as "the" and "of" do: queries rarely hold them."""
    searcher, terms = index.ranker.searcher, index.ranker.terms
    words = {word.strip(".").lower() for row in rows[:300] for word in row["text"].split()}
    return {w for w in words if any(searcher.doc_freq("text", t) > len(index) / 10 for t in terms(w))}


def timed(work, *arguments):
    """Milliseconds of one call that finds something."""
    start = time.perf_counter()
    assert work(*arguments)
    return 1000 * (time.perf_counter() - start)


def measured(count, folder):
    """All figures of one size, each part in a fresh process."""
    pages, index = folder / f"{count}.jsonl", folder / f"{count}"
    write_pages(pages, count)
    row = {"pages": count, "page_bytes": pages.stat().st_size / count}
    for part in ("build_one", "search_one"):
        command = [sys.executable, __file__, "--part", part, str(pages), str(index)]
        row |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return row


def misses(base, rows):
    """What is above its bar."""
    found = []
    for row in rows:
        found += [f"{row['pages']:,} pages: median {row['median_ms']:.2f} ms"] * (row["median_ms"] > MEDIAN_MS)
        found += [f"{row['pages']:,} pages: p99 {row['p99_ms']:.2f} ms"] * (row["p99_ms"] > P99_MS)
    first, last = rows[0], rows[-1]
    grown = (last["peak_mib"] - base) / max(first["peak_mib"] - base, 1.0)
    if grown > last["pages"] / first["pages"]:
        found.append(f"memory grew {grown:.1f} times from {first['pages']:,} to {last['pages']:,} pages")
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="10000,1000000", help="numbers of pages, from small to large")
    options.add_argument(
        "--folder", type=Path, help="where the pages and indexes lie (default: a temporary one)"
    )
    options.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.part:
        name, pages, index = given.part
        print(json.dumps({"build_one": build_one, "search_one": search_one}[name](Path(pages), Path(index))))
        return 0
    folder = given.folder or Path(tempfile.mkdtemp(prefix="index-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        base = measured(100, folder)["peak_mib"]
        rows = [measured(int(size), folder) for size in given.sizes.split(",")]
    finally:
        if not given.folder:
            shutil.rmtree(folder)
    print(
        "| pages | build s (CPU) | MiB | bytes a page | disk MB | query ms | running ms | open ms | resident |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        above = row["peak_mib"] - base
        print(
            f"| {row['pages']:,} | {row['wall_s']:.1f} ({row['cpu_s']:.1f}) | {above:.0f} | "
            f"{above * 2**20 / row['pages']:.0f} | {row['disk_mb']:.0f} | "
            f"{row['median_ms']:.2f}, p99 {row['p99_ms']:.1f} | "
            f"{row['running_ms']:.2f}, p99 {row['running_p99_ms']:.1f} | "
            f"{row['open_ms']:.2f} | {row['resident_mib']:.0f} |"
        )
    print(f"pages of {rows[-1]['page_bytes']:.0f} bytes; {rows[-1]['segments']} segments in the last index")
    missed = misses(base, rows)
    print("\n".join(f"missed: {line}" for line in missed) or "all bars are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
