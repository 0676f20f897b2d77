import asyncio
import sys

import pytest

from carr_jax.rollout.engine import WeightUpdateError
from carr_jax.rollout.weight_sync import WeightSync


class Engine:
    def __init__(self, refuses=()):
        self.got, self.refuses = [], refuses

    async def update_weights(self, folder, version):
        if version in self.refuses:
            raise WeightUpdateError("no")
        self.got.append((version, (folder / "weights").read_text()))


def export(folder, params):
    folder.mkdir(parents=True)
    (folder / "weights").write_text(params)


def test_each_version_is_a_folder_and_the_newest_two_are_kept(tmp_path):
    engine = Engine()
    sync = WeightSync(tmp_path / "ram", export)
    for version, params in enumerate("abcd"):
        asyncio.run(sync.publish(engine, params, version))
    assert engine.got == list(enumerate("abcd"))
    assert sorted(p.name for p in (tmp_path / "ram").iterdir()) == ["version_000002", "version_000003"]


def test_a_refused_version_leaves_the_one_that_serves(tmp_path):
    engine, sync = Engine(refuses=(2,)), WeightSync(tmp_path, export)
    for version in (0, 1):
        asyncio.run(sync.publish(engine, "w", version))
    with pytest.raises(WeightUpdateError):
        asyncio.run(sync.publish(engine, "w", 2))
    assert (tmp_path / "version_000001" / "weights").exists()


def test_the_push_command_runs_without_a_shell(tmp_path):
    there = tmp_path / "there $(touch no)"
    copy = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2])"
    push = f"{sys.executable} -c '{copy}' {{folder}} '{there}'"
    asyncio.run(WeightSync(tmp_path / "here", export, push).publish(Engine(), "w", 0))
    assert (there / "weights").read_text() == "w" and not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("push", "says"),
    [("no-such-program {folder}", "no-such-program"), ("sh -c 'echo full >&2; exit 3'", "status 3: full")],
)
def test_a_failing_push_is_one_clear_error_and_updates_nobody(tmp_path, push, says):
    engine = Engine()
    with pytest.raises(WeightUpdateError, match=says):
        asyncio.run(WeightSync(tmp_path, export, push).publish(engine, "w", 0))
    assert not engine.got
