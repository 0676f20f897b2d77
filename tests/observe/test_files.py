"""A file is whole or absent."""

import pytest

from carr_jax.observe.files import atomic_file


def test_an_error_inside_leaves_the_old_file(tmp_path):
    path = tmp_path / "deep" / "file"
    with atomic_file(path) as file:
        file.write(b"old")
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_bytes() == b"old"
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
