import dataclasses

import numpy as np
import pytest

from carr_jax.observe.begun import read_begun, write_begun
from carr_jax.records import Begun, End, InputError, ToolCall, ToolResult, Trajectory, Turn
from carr_jax.stored import to_json


def trajectory(routes):
    turn = Turn(2, 4, "thought", "", (ToolCall("browser.search", {"query": "q"}, ToolResult("out")),))
    return Trajectory(
        "q",
        0,
        2,
        np.array([1, 2, 3, 4, 5], np.int32),
        np.array([0, 0, 1, 1, 0], np.int8),
        np.array([0, 0, -0.1, np.nan, 0], np.float32),
        np.array([-1, -1, 3, 4, -1], np.int32),
        (turn,),
        End.UNFINISHED,
        routes=routes,
    )


def test_groups_come_back_as_they_were(tmp_path):
    routes = np.random.default_rng(0).integers(-1, 128, (5, 3, 2)).astype(np.int16)
    groups = [Begun(7, 3, (trajectory(None), trajectory(routes))), Begun(9, 4, ())]
    write_begun(tmp_path / "a.gz", groups)
    back = read_begun(tmp_path / "a.gz")
    assert to_json(back) == to_json(groups)
    assert back[0].trajectories[0].routes is None
    np.testing.assert_array_equal(back[0].trajectories[1].routes, routes)
    for name, array in vars(groups[0].trajectories[1]).items():
        if isinstance(array, np.ndarray):
            again = getattr(back[0].trajectories[1], name)
            assert again.dtype == array.dtype
            np.testing.assert_array_equal(again, array)
    assert dataclasses.replace(back[1]) == groups[1]


@pytest.mark.parametrize("content", [None, b"not gzip", b""])
def test_a_damaged_file_is_one_clear_line(tmp_path, content):
    path = tmp_path / "a.gz"
    write_begun(path, [Begun(0, 0, (trajectory(None),))])
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content or path.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        read_begun(path)
