"""Datasets without TensorFlow: what goes in comes out, in order; what was changed is refused."""

import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carr_jax import config as configuration
from carr_jax.data.card import card_of
from carr_jax.data.conversations import History, Message, read_histories
from carr_jax.data.sources import read_pages, read_questions
from carr_jax.records import InputError, Question, Rubric, ToolCall
from carr_jax.search.world import WorldConfig, build_world
from carr_jax.stored import to_json
from carr_jax.task import load_task, question_order

tfds = pytest.importorskip("tensorflow_datasets", reason="the extra data is not installed")

from carr_jax.data.tfds_builders.builders import (
    BuiltInWorld,
    CarrQuestions,
    DeepdiveQuestions,
    SftTraces,
    examples_sha256,
)
from carr_jax.data.tfds_builders.building import build
from carr_jax.data.tfds_builders.features import (
    HISTORY,
    QUESTION,
    history_example,
    history_of,
    question_example,
    question_of,
)
from carr_jax.data.tfds_builders.reading import read_history_dataset, read_question_dataset

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data"
WORLD = WorldConfig(entities_per_kind=20, distractors=8, look_alikes=0, obfuscate=0.5)
COUNTS = {"sft": 20, "train": 20, "held_out": 2}


def write(path, rows):
    path.write_text("".join(json.dumps(to_json(row)) + "\n" for row in rows))
    return path


# -------------------------------------------------------------------------------------------------- round trips

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
many = st.lists(texts, max_size=3).map(tuple)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
questions = st.builds(
    Question,
    id=texts,
    question=texts,
    answer=texts,
    answer_aliases=many,
    answer_type=st.sampled_from(["entity", "date", "number", "yesno"]),
    rubrics=st.lists(st.builds(Rubric, texts, many, texts), max_size=3).map(tuple),
    entities=st.dictionaries(texts, many, max_size=3),
    gold_urls=many,
    hops=st.integers(0, 2**31 - 1),
    source=texts,
    split=texts,
    metadata=st.dictionaries(texts, values, max_size=3),
)
calls = st.builds(ToolCall, texts, st.dictionaries(texts, values, max_size=2))
messages = st.builds(Message, texts, texts, texts, st.lists(calls, max_size=2).map(tuple))
histories = st.builds(
    History,
    id=texts,
    question=texts,
    answer=texts,
    messages=st.lists(messages, max_size=3).map(tuple),
    tools=st.lists(st.dictionaries(texts, values, max_size=2), max_size=2).map(tuple),
)


def through(features, example):
    """An example as TFDS writes it to a record and reads it."""
    serializer = tfds.core.example_serializer.ExampleSerializer(features.get_serialized_info())
    record = serializer.serialize_example(features.encode_example(example))
    return features.deserialize_example_np(record)


@given(questions)
@settings(max_examples=150, deadline=None)
def test_a_question_comes_back_equal(question):
    assert question_of(through(QUESTION, question_example(question))) == question


@given(histories)
@settings(max_examples=100, deadline=None)
def test_a_history_comes_back_equal(history):
    assert history_of(through(HISTORY, history_example(history))) == history


def test_order_of_entities_and_arguments_survives():
    """Prompt bytes follow the order of a call's arguments (CT-12)."""
    question = Question("q", "?", "a", entities={"E1": ("x",), "E0": ("a",)})
    assert list(question_of(through(QUESTION, question_example(question))).entities) == ["E1", "E0"]
    history = History("h", "?", "a", (Message("assistant", "", "", (ToolCall("f", {"b": 1, "a": 2}),)),))
    (message,) = history_of(through(HISTORY, history_example(history))).messages
    assert list(message.tool_calls[0].arguments) == ["b", "a"]


# ----------------------------------------------------------------------------------------------------- datasets


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A folder of datasets with the built-in world."""
    folder = tmp_path_factory.mktemp("sets")
    build(BuiltInWorld(WORLD, COUNTS, data_dir=folder), "python make.py")
    return folder


def test_the_world_comes_back_with_its_pages_and_a_card(sets):
    world = build_world(WORLD)
    expected = [q for split, count in COUNTS.items() for q in world.questions(split, count)]
    assert read_question_dataset(sets, "built_in_world") == expected
    assert tuple(read_pages(sets / "built_in_world" / "1.0.0")) == world.pages
    card = card_of(sets / "built_in_world").read_text()
    for line in ("    python make.py", ", seed 0:", "| sft | 20 |", "| world | 42 |", "1.0.0/corpus.jsonl.gz"):
        assert line in card


def test_tfds_reads_it_by_name(sets):
    """As anybody would, without our reader: length, slices, random access, in the order of the source."""
    source = tfds.data_source("built_in_world", split="train", data_dir=sets)
    expected = build_world(WORLD).questions("train", 20)
    assert [question_of(example) for example in source] == expected
    assert question_of(source[7]) == expected[7]
    assert len(tfds.data_source("built_in_world", split="train[:25%]", data_dir=sets)) == 5
    info = tfds.builder("built_in_world", data_dir=sets).info
    assert str(info.version) == "1.0.0" and info.citation and set(info.splits) == set(COUNTS)


def test_questions_of_any_shape_become_a_dataset(tmp_path):
    flat = [{"question": f"{i}?", "answer": f"é{i}", "rubrics": ["<E0> is it."], "x": [i]} for i in range(9)]
    outcome_only = [{"question": "Whether?", "answer": "no"}]
    write(tmp_path / "train.jsonl", [*flat[:6], *outcome_only])
    write(tmp_path / "dev.jsonl", flat[6:])
    found = read_questions(tmp_path)
    build(CarrQuestions(tmp_path, data_dir=tmp_path / "sets"), "m")
    build(DeepdiveQuestions(tmp_path, data_dir=tmp_path / "sets"), "m")
    judged = [q for q in found if q.rubrics]
    assert read_question_dataset(tmp_path / "sets", "carr_questions:1.0.0") == judged
    assert "| left out, without rubrics | 1 |" in card_of(tmp_path / "sets" / "carr_questions").read_text()
    assert read_question_dataset(tmp_path / "sets", "deepdive_questions") == found
    with pytest.raises(InputError, match="no question has rubrics"):
        build(CarrQuestions(write(tmp_path / "o.jsonl", outcome_only), data_dir=tmp_path / "none"), "m")


def test_traces_become_a_dataset(tmp_path):
    rows = [
        {
            "id": f"{i}",
            "question": "Who?",
            "answer": "Bo",
            "messages": [
                {"role": "user", "content": "Who?"},
                {"role": "assistant", "reasoning_content": "é", "content": "Bo"},
            ],
        }
        for i in range(3)
    ]
    path = write(tmp_path / "t.jsonl", rows)
    build(SftTraces(path, data_dir=tmp_path / "sets"), "m")
    assert read_history_dataset(tmp_path / "sets", "sft_traces") == read_histories(path)
    with pytest.raises(InputError, match="another kind"):
        read_question_dataset(tmp_path / "sets", "sft_traces")
    assert "| turns | 3 |" in card_of(tmp_path / "sets" / "sft_traces").read_text()


def test_manual_dir_is_tfds_own_way_to_give_files(tmp_path):
    (tmp_path / "manual").mkdir()
    write(tmp_path / "manual" / "q.jsonl", [{"question": "?", "answer": "a", "rubrics": ["<E0> is it."]}])
    builder = tfds.builder("carr_questions", data_dir=tmp_path / "sets")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=tmp_path / "manual"))
    assert len(read_question_dataset(tmp_path / "sets", "carr_questions")) == 1


def test_a_dataset_is_made_once_and_from_one_source(tmp_path):
    path = write(tmp_path / "q.jsonl", [{"question": "?", "answer": "a", "rubrics": ["<E0> is it."]}])
    folder = build(CarrQuestions(path, data_dir=tmp_path / "sets"), "m")
    before = (folder / "dataset_info.json").stat().st_mtime_ns
    assert build(CarrQuestions(path, data_dir=tmp_path / "sets"), "m") == folder
    assert (folder / "dataset_info.json").stat().st_mtime_ns == before
    write(path, [{"question": "?", "answer": "b", "rubrics": ["<E0> is it."]}])
    with pytest.raises(InputError, match="was made from another source"):
        build(CarrQuestions(path, data_dir=tmp_path / "sets"), "m")


def test_a_changed_or_broken_dataset_is_refused(tmp_path):
    path = write(tmp_path / "q.jsonl", [{"question": "?", "answer": "a", "rubrics": ["<E0> is it."]}])
    folder = build(CarrQuestions(path, data_dir=tmp_path / "sets"), "m")
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["sha256"] == {"train": examples_sha256(map(question_example, read_questions(path)))}
    (folder / "metadata.json").write_text(json.dumps(metadata | {"sha256": {"train": "0"}}))
    with pytest.raises(InputError, match="it is not what was built"):
        read_question_dataset(tmp_path / "sets", "carr_questions")
    shard = next(folder.glob("*array_record*"))
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(InputError, match=r"1\.0\.0: cannot be read"):
        read_question_dataset(tmp_path / "sets", "carr_questions")


@pytest.mark.parametrize("name", ["", "carr_question", "built_in_world:2.0.0"])
def test_a_dataset_that_is_not_there_is_one_line(sets, name):
    with pytest.raises(InputError, match=f"there is no dataset {name!r}"):
        read_question_dataset(sets, name)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared multi-hop files are not next to this repository")
def test_shared_questions_come_back_equal():
    for question in read_questions(SHARED)[::5]:
        assert question_of(through(QUESTION, question_example(question))) == question


# ----------------------------------------------------------------------------------------------------- training


def task_config(sets, **data):
    config = configuration.rl()
    config.data.update(source="tfds", path=str(sets), name="built_in_world", train_questions=0, **data)
    return config


def test_training_takes_a_dataset_as_it_takes_the_world(sets):
    world = configuration.rl()
    world.world.update(entities_per_kind=20, distractors=8, look_alikes=0, obfuscate=0.5)
    world.data.update(train_questions=20, held_out_questions=2)
    for split in ("train", "sft"):
        ours, theirs = load_task(task_config(sets, held_out_questions=2), split), load_task(world, split)
        assert ours.questions == theirs.questions
        assert (ours.held_out, ours.pages) == (theirs.held_out, theirs.pages)


def test_the_order_after_a_kill_is_that_of_a_run_that_was_not_killed(sets):
    """The position in the checkpoint is one integer: a new process reads the set again and goes on there.

    Neither TensorFlow nor JAX is loaded for that.
    """
    questions = load_task(task_config(sets), "train").questions
    count = len(questions)
    whole = [questions[question_order(3, i, count)].id for i in range(3 * count)]
    position = 27  # in the second epoch
    code = (
        "import sys; from carr_jax import config as c;"
        "from carr_jax.task import load_task, question_order as order;"
        f"config = c.rl(); config.data.update(source='tfds', path={str(sets)!r}, name='built_in_world',"
        "train_questions=0); found = load_task(config, 'train').questions;"
        f"print([found[order(3, i, {count})].id for i in range({position}, {3 * count})]);"
        "sys.exit(bool({'tensorflow', 'jax'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True)
    assert told.stdout.strip() == str(whole[position:])
    epochs = [whole[k * count : (k + 1) * count] for k in range(3)]
    assert all(sorted(epoch) == sorted(q.id for q in questions) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_files_without_bad_rows_on_demand(tmp_path, capsys):
    rows = [dataclasses.replace(q, split="train") for q in build_world(WORLD).questions("sft", 3)]
    write(tmp_path / "q.jsonl", [*rows, {"question": "?"}])
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.write(json.dumps({"url": "https://a.example", "title": "A", "text": "a"}) + "\n")
    config = configuration.rl()
    config.data.update(source="files", path=str(tmp_path), train_questions=0)
    with pytest.raises(InputError, match="1 bad rows"):
        load_task(config, "train")
    config.data.skip_bad_rows = True
    assert load_task(config, "train").questions == tuple(rows)
    assert f"1 bad rows are left out\n{tmp_path / 'q.jsonl'}:4: the key" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["carr_questions"], "--source belongs to"),
        (["built_in_world", "--source=x"], "--source belongs to"),
        (["carr_questions", "--source=nowhere.jsonl"], "nowhere.jsonl: there is no such file"),
        (["questions", "--source=x"], "invalid choice"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, capsys, monkeypatch, arguments, says):
    monkeypatch.syspath_prepend(str(ROOT / "launch"))
    import build_dataset

    assert build_dataset.main(["build_dataset.py", *arguments, f"--out={tmp_path / 'sets'}"]) == 2
    out = capsys.readouterr().out
    assert says in out and out.count("\n") == 1


def test_the_command_builds(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "launch"))
    import build_dataset

    path = write(tmp_path / "q.jsonl", build_world(WORLD).questions("train", 4))
    argv = ["build_dataset.py", "carr_questions", f"--source={path}", f"--out={tmp_path / 'sets'}"]
    assert build_dataset.main(argv) == 0
    out = capsys.readouterr().out
    assert out.startswith("train: 4\n") and "carr_questions.card.md" in out
    assert len(read_question_dataset(tmp_path / "sets", "carr_questions")) == 4
