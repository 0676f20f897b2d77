"""The floors of the house (docs/design.md, section 3): who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "carr_jax"

LOOP = set("agent learner learning observe policy rewards rollout run sanity task".split())

# Each room with the rooms that it may import; every room may import records and itself.
MAY_IMPORT = {
    "records": set(),
    "stored": set(),
    "addresses": set(),
    "sharding": set(),
    "models": {"sharding"},
    "learning": {"models", "sharding"},
    "serving": set(),
    "search": {"addresses", "agent", "serving", "stored"},
    "llm": {"addresses"},
    "rewards": {"addresses", "llm", "serving", "stored"},
    "data": {"observe", "rewards", "search", "stored"},
    "agent": set(),
    "rollout": {"agent", "llm", "search", "models", "weights"},
    "observe": {"stored"},
    "config": {"rewards"},
    "distributed": set(),
    "gate": {"observe", "rewards", "stored"},
    "preflight": {"addresses", "config", "gate", "llm"},
    "judging": {"command", "config", "llm", "preflight", "rewards"},
    "command": {"config", "distributed", "preflight"},
    "task": {"agent", "data", "search"},
    "weights": {"distributed", "models", "stored"},
    "policy": {"agent", "distributed", "models", "sharding", "stored", "weights"},
    "run": {"config", "distributed", "models", "observe", "policy", "stored", "task"},
    "sanity": {"models", "policy"},
    "convert": {"agent", "learning", "models", "policy", "run", "sanity", "weights"},
    "learner": {"learning", "models", "policy", "run", "sharding"},
    "agreement": {"agent", "learning", "rollout"},
    "actor": LOOP - {"learning", "sanity"} | {"judging"},
    "train": LOOP | {"actor", "agreement", "distributed", "judging", "llm"},
    "scoring": {"observe", "rewards", "stored"},
    "journal": {"stored"},
    "decomposing": {"data", "journal", "observe", "rewards", "stored"},
    "calibrating": {"agent", "rewards", "rollout", "search", "stored"},
    "traces": {"data", "journal", "observe", "rewards", "stored"},
    "collecting": {"agent", "data", "journal", "judging", "llm", "rewards", "rollout", "traces"},
    "teaching": LOOP - {"learner", "learning", "observe", "run", "sanity"}
    | {"actor", "collecting", "config", "data", "judging", "llm", "preflight", "search", "stored", "traces"},
    "lessons": LOOP | {"collecting", "data", "search", "traces"},
    "sft": LOOP | {"distributed", "lessons"},
    "planning": {"command", "config", "learner", "learning", "models", "sharding"},
}
WITHOUT_JAX = ("agent", "search", "llm", "rewards", "data", "observe")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return modules


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__"}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_stay_on_their_floor(path):
    room = room_of(path)
    if room == "__init__":
        return
    inside = {m.split(".")[1] for m in imported_modules(path) if m.startswith("carr_jax.")}
    rooms = {name for name in inside if name in MAY_IMPORT}
    assert rooms <= MAY_IMPORT[room] | {room, "records"}


@pytest.mark.parametrize("room", WITHOUT_JAX)
def test_rooms_that_never_load_jax(room):
    """Checked on the loaded modules, so that an indirect import counts too."""
    paths = [p.relative_to(PACKAGE.parent) for p in sorted((PACKAGE / room).rglob("*.py"))]
    modules = [".".join(p.with_suffix("").parts) for p in paths if p.stem != "__init__"]
    code = f"import sys, {', '.join(modules)}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent).returncode == 0


def test_sglang_is_never_imported():
    for path in PACKAGE.rglob("*.py"):
        assert not any(m.split(".")[0] == "sglang" for m in imported_modules(path)), path
