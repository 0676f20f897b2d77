"""Figures for notebooks, and the notebook that shows them."""

import json
import os
import pathlib
import subprocess
import sys

import fake_run
import pytest
from fake_run import RUBRICS, known

from carr_jax.observe.plots import evidence_graph, filled_names, plot_evidence_graph, plot_run, points
from carr_jax.records import RubricScore, Score

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "first_look.ipynb"


@pytest.fixture(autouse=True)
def headless(monkeypatch):
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield
    plt.close("all")


def test_evidence_graph_is_bipartite_with_states_and_names():
    graph = evidence_graph(known(1.0, "cci--"))
    assert set(graph) == {"E0", "E1", "E2", "E3", 0, 1, 2, 3, 4}
    assert {frozenset(edge) for edge in graph.edges} == {
        frozenset(edge)
        for edge in [
            (0, "E0"),
            (0, "E1"),
            (1, "E0"),
            (1, "E2"),
            (2, "E2"),
            (2, "E1"),
            (3, "E3"),
            (3, "E2"),
            (4, "E3"),
        ]
    }
    assert [graph.nodes[i]["state"] for i in range(4)] == [
        "connected",
        "connected",
        "identified",
        "not identified",
    ]
    assert graph.nodes["E0"]["name"] == "Ilsa Tørnqvist" and "name" not in graph.nodes["E3"]


@pytest.mark.parametrize(
    ("rubric", "text", "names"),
    [
        ("<E0> (born in <E1>).", "A+B (born in C).", {"E0": "A+B", "E1": "C"}),
        ("<E0> is <E0> of <E1>", "x is x of y", {"E0": "x", "E1": "y"}),
        ("<E0> is here", "something else", {}),
        ("no placeholder", "no placeholder", {}),
        ("<E0>", None, {}),
    ],
)
def test_filled_names(rubric, text, names):
    assert filled_names(RubricScore(rubric, text, True, False, False)) == names


def test_evidence_plot_labels_every_node():
    figure = plot_evidence_graph(known(1.0, "ccs--"))
    words = {text.get_text().replace("\n", " ") for text in figure.axes[0].texts}
    assert {"E0", "E1", "E2", "E3", "Ilsa Tørnqvist was born in Port Mavra.", RUBRICS[4].text} <= words


def test_evidence_plot_survives_hostile_text_and_unreachable_entities():
    scores = (RubricScore("$<E1>$ \\frac{", "$x$ \\frac{", True, True, False),)
    plot_evidence_graph(Score("ok", 1.0, 0.0, rubric_scores=scores)).canvas.draw()


def test_evidence_plot_needs_rubrics():
    with pytest.raises(ValueError, match="no rubric was judged"):
        plot_evidence_graph(known(0.0))


def test_run_plot_skips_what_was_not_measured():
    rows = [{"step": 1, "reward/outcome": 0.5}, {"step": 2, "reward/outcome": None, "learn/entropy": 0.1}]
    assert points(rows, "reward/outcome") == ([1], [0.5])
    figure = plot_run(rows)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles[:2] == ["Outcome", "Entropy"] and not any(titles[2:])
    with pytest.raises(ValueError, match="nothing to plot"):
        plot_run([{"step": 1}])


# --------------------------------------------------------------------------------------------- the notebook


def run_notebook(folder: pathlib.Path) -> subprocess.CompletedProcess:
    """Its code cells, in order, in a fresh process that starts in `folder`."""
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    root = str(NOTEBOOK.parents[1])
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": root, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("start", [".", "notebooks"])
def test_notebook_runs(tmp_path, start):
    run = tmp_path / "runs" / "tiny"
    run.mkdir(parents=True)
    fake_run.write_run(run, 3)
    (tmp_path / "notebooks").mkdir()
    done = run_notebook(tmp_path / start)
    assert done.returncode == 0, done.stderr
    assert "# fake-7, sample" in done.stdout and "Outcome" in done.stdout


def test_notebook_says_how_to_make_a_run(tmp_path):
    done = run_notebook(tmp_path)
    assert done.returncode == 1
    assert (
        "python launch/train.py --config=configs/c_grpo_tiny.py" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_notebook_is_clean_and_keeps_to_its_rooms():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    code = "".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
    imports = [line.split()[1] for line in code.splitlines() if line.startswith(("from ", "import "))]
    assert all(name.startswith(("carr_jax.observe", "carr_jax.records", "pathlib")) for name in imports)
    assert all(not c["outputs"] and c["execution_count"] is None for c in cells if c["cell_type"] == "code")
