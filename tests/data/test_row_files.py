"""Kinds of files: the same rows come out of each, and a broken one is one clear line."""

import base64
import gzip
import hashlib
import json
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carr_jax.data.container import FORMAT, PASSWORD, apply_key
from carr_jax.data.files import parse_all
from carr_jax.data.sources import read_questions, split_of
from carr_jax.records import InputError

ROWS = [{"question": f"Which is {i}, é?", "answer": str(i), "rubrics": ["<E0> is it."]} for i in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def lock(path, plain, password, **changes):
    digest = hashlib.sha256(password.encode()).digest()
    locked = bytes(byte ^ digest[i % 32] for i, byte in enumerate(plain))
    container = {"format": FORMAT, "filename": "q.jsonl", "size": len(plain)}
    container |= {"ciphertext_b64": base64.b64encode(locked).decode()} | changes
    path.write_text(json.dumps(container))
    return path


def table(rows):
    import pyarrow

    return pyarrow.Table.from_pylist(rows)


@pytest.fixture
def each_kind(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra data is not installed")
    monkeypatch.setenv(PASSWORD, "sesame")
    (tmp_path / "q.jsonl").write_bytes(LINES)
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "q.json").write_text(json.dumps(ROWS))
    lock(tmp_path / "q.jsonl.enc", LINES, "sesame")
    parquet.write_table(table(ROWS), tmp_path / "q.parquet")
    return [tmp_path / f"q.{kind}" for kind in ("jsonl", "jsonl.gz", "json", "jsonl.enc", "parquet")]


def test_every_kind_gives_the_same_questions(each_kind):
    first, *others = map(read_questions, each_kind)
    assert [q.answer for q in first] == ["0", "1", "2"]
    assert all(other == first for other in others)


def test_a_missing_column_of_parquet_is_a_missing_key(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra data is not installed")
    rows = [ROWS[0] | {"id": "a", "split": None}, {"question": "?", "id": "b", "split": "dev"}]
    parquet.write_table(table(rows), tmp_path / "q.parquet")
    with pytest.raises(InputError, match=r"^1 bad rows.*\n.*q\.parquet:2: the key 'answer' is missing"):
        read_questions(tmp_path / "q.parquet")


@pytest.mark.parametrize("kind", range(5))
def test_a_cut_file_is_one_clear_error(each_kind, kind):
    path = each_kind[kind]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=path.name):
        read_questions(path)


def test_a_container_is_opened_by_its_password_alone(tmp_path, monkeypatch):
    path = lock(tmp_path / "q.jsonl.enc", LINES, "sesame")
    monkeypatch.delenv(PASSWORD, raising=False)
    with pytest.raises(InputError, match=f"environment variable {PASSWORD}"):
        read_questions(path)
    monkeypatch.setenv(PASSWORD, "open barley")
    with pytest.raises(InputError, match="does not open it") as caught:
        read_questions(path)
    assert "barley" not in str(caught.value)
    monkeypatch.setenv(PASSWORD, "sesame")
    for changes in ({"format": "other"}, {"size": 3}, {"ciphertext_b64": "?"}):
        lock(path, LINES, "sesame", **changes)
        with pytest.raises(InputError, match=r"q\.jsonl\.enc"):
            read_questions(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["q.jsonl.enc"], "nothing decrypted is on disk"


@given(st.binary(max_size=99), st.text(max_size=9))
def test_the_key_stream_is_the_repeated_digest(data, password):
    digest = hashlib.sha256(password.encode()).digest()
    assert apply_key(data, password) == bytes(b ^ digest[i % 32] for i, b in enumerate(data))


@pytest.mark.parametrize(
    ("module", "path", "says"),
    [("pyarrow", "q.parquet", "carr_jax\\[data\\]"), ("datasets", "hf:some/set/train", "pip install datasets")],
)
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, module, path, says):
    monkeypatch.setitem(sys.modules, module, None)
    if not path.startswith("hf:"):
        path = tmp_path / path
        path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=says):
        read_questions(path)


def test_the_hub_is_asked_for_one_split(monkeypatch):
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((*arguments, options))
        if arguments[0] == "some/set":
            raise ConnectionError("cannot\nreach it")
        return [row | {"split": None} for row in ROWS]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    found = read_questions("hf:zai-org/DeepDive:small/qa_sft")
    assert [(q.answer, q.split) for q in found] == [("0", "sft"), ("1", "sft"), ("2", "sft")]
    with pytest.raises(InputError, match="hf:some/set/train: the hub gives no such split .*cannot reach it"):
        read_questions("hf:some/set/train")
    assert asked == [
        ("zai-org/DeepDive", "small", {"split": "qa_sft"}),
        ("some/set", None, {"split": "train"}),
    ]


def test_a_name_of_the_hub_needs_a_split():
    with pytest.raises(InputError, match="hf:NAME/SPLIT"):
        read_questions("hf:squad")


def test_numbers_that_json_does_not_know_are_refused(tmp_path):
    (tmp_path / "q.jsonl").write_text('{"question": "?", "answer": "x", "level": NaN}\n')
    with pytest.raises(InputError, match=r"q\.jsonl:1: NaN is no JSON"):
        read_questions(tmp_path / "q.jsonl")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.jsonl", "train"),
        ("musique_ans_v1.0_dev.jsonl", "dev"),
        ("qa_rl-00000-of-00001.parquet", "train"),
        ("validation.parquet", "dev"),
        ("devices.jsonl", "train"),
        ("qa_sft-00000-of-00001.parquet", "sft"),
        ("test/train.jsonl", "train"),
    ],
)
def test_the_name_of_a_file_tells_its_split(tmp_path, name, split):
    assert split_of(tmp_path / name) == split


def test_bad_rows_of_all_files_are_told_together(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("1\n")
    told = []
    assert parse_all([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], lambda row, place: row, told.extend) == []
    assert [reason.endswith(": a row must be a JSON object, got int") for reason in told] == [True, True]
