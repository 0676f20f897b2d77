"""The notebooks run from top to bottom without a person, an accelerator or torch."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "observe"))
from fake_run import write_run


def execute(name, folder, monkeypatch):
    """The executed notebook, started in `folder`; an error in a cell is raised."""
    nbclient = pytest.importorskip(
        "nbclient", reason="needs nbclient and ipykernel: pip install nbclient ipykernel"
    )
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel")
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    return nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()


def figures(notebook):
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", ())]
    return sum("image/png" in o.get("data", {}) for o in outputs)


@pytest.mark.slow
def test_first_look(tmp_path, monkeypatch):
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    write_run(tmp_path / "runs" / "tiny", steps=6)
    assert figures(execute("first_look.ipynb", tmp_path, monkeypatch)) == 2


@pytest.mark.slow
def test_layer_parity(monkeypatch):
    assert figures(execute("layer_parity.ipynb", ROOT / "notebooks", monkeypatch)) == 2


def test_reward_inspection(tmp_path, monkeypatch):
    notebook = execute("reward_inspection.ipynb", tmp_path, monkeypatch)
    tables = [o for cell in notebook.cells for o in cell.get("outputs", ()) if "text/html" in o.get("data", {})]
    assert figures(notebook) == 3 and len(tables) == 4


def test_notebooks_are_kept_without_outputs():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert '"output_type"' not in path.read_text(), path.name
