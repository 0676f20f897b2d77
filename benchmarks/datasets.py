"""How long a dataset takes to open: `python benchmarks/datasets.py` (a minute; needs the extra `data`).

2,234 questions, as many as DeepDive has for reinforcement learning, with ten rubrics each as in the paper, are
built as `carr_questions`.  A fresh process then opens them as a run does: reads every record, checks the
checksum, and takes the questions of one epoch in their order.  Ends with status 1 when the bar is missed.

    build    seconds of build_dataset, card included
    import   seconds until TFDS and our reader are imported
    open     seconds until all questions are there: the median of five processes
    epoch    seconds of one epoch's order
    disk     MB

Seconds are those of the CPU, over all threads.  Bar: open in less than 2.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

ROWS, RUBRICS, OPEN_S, PROCESSES = 2234, 10, 2.0, 5


def row(i):
    """A question of about the length of DeepDive's, as the public rollout rows have it."""
    clue = f"a place number {i} that somebody described in the year {1000 + i % 900} in a long sentence"
    question = f"Which one follows from {'; '.join(f'clue {k}: {clue}' for k in range(6))}?"
    hops = [f"<E{k}> is {clue}, and stands {k} miles from <E{k - 1}>." for k in range(1, RUBRICS + 1)]
    info = {"search_forbidden_strs": [question], "rubrics": hops}
    return {
        "source": "deepsearch_with_browser",
        "input_messages": [{"role": "user", "content": question}],
        "label": f"Answer {i}",
        "metadata": {"remote_env_info": info},
    }


def opened(folder):
    """Figures of this process."""
    start = time.process_time()
    from carr_jax.data.tfds_builders.reading import read_question_dataset
    from carr_jax.task import question_order

    imported = time.process_time()
    questions = read_question_dataset(folder, "carr_questions")
    read = time.process_time()
    order = [question_order(0, position, len(questions)) for position in range(0, len(questions), 100)]
    ended = time.process_time()
    assert len(questions) == ROWS and len(set(order)) == len(order)
    scale = len(questions) / len(order)
    return {"import_s": imported - start, "open_s": read - imported, "epoch_s": (ended - read) * scale}


def main():
    from carr_jax.data.tfds_builders.builders import CarrQuestions
    from carr_jax.data.tfds_builders.building import build

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = "".join(json.dumps(row(i)) + "\n" for i in range(ROWS))
        (folder / "q.jsonl").write_text(rows)
        start = time.process_time()
        made = build(CarrQuestions(folder / "q.jsonl", data_dir=folder / "sets"), "benchmarks/datasets.py")
        figures = {"build_s": time.process_time() - start}
        command = [sys.executable, __file__, str(folder / "sets")]
        runs = [
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            for _ in range(PROCESSES)
        ]
        figures |= {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        figures["disk_mb"] = sum(p.stat().st_size for p in made.iterdir()) / 1e6
    print("  ".join(f"{key} {value:.2f}" for key, value in figures.items()))
    return int(figures["open_s"] >= OPEN_S)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(opened(sys.argv[1])))
        sys.exit()
    sys.exit(main())
