"""The house stays readable: short functions, files read in one sitting, no machine paths."""

import ast
import re
import statistics
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "carr_jax"
FILES = sorted(PACKAGE.rglob("*.py"))


def functions():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.end_lineno - node.lineno + 1, f"{path.name}:{node.lineno} {node.name}"


def test_functions_are_short():
    lengths = sorted(functions())
    assert lengths[-1][0] <= 70, lengths[-3:]
    assert statistics.median(n for n, _ in lengths) <= 14


def test_files_are_read_in_one_sitting():
    lengths = {path.name: path.read_text().count("\n") for path in FILES}
    assert max(lengths.values()) <= 400, lengths


def test_modules_and_public_functions_say_what_they_are():
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name}"


def test_no_paths_of_a_machine():
    for path in FILES:
        assert not re.search(r"/(home|root|Users)/\w", path.read_text()), path
