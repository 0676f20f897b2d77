"""Dataset cards: what they count, that programs can read their head, and that no text breaks them."""

import hashlib

import yaml

from carr_jax.data.card import Card, card_of, write_card
from carr_jax.records import Question, Rubric

TWO = (Rubric("<E1> stands in Oslo."), Rubric("<E0> built <E1>."))
QUESTIONS = [
    Question("a", "Who?", "Bo", rubrics=TWO, hops=2, source="world"),
    Question("b", "Who?", "Bo", rubrics=TWO[1:], hops=2, source="world", split="dev"),
    Question("c", "When?", "1871", answer_type="date"),
]


def write(tmp_path, card, content=b"x\n"):
    file = tmp_path / "q.jsonl"
    file.write_bytes(content)
    path = write_card(file, card)
    assert path == card_of(file) == tmp_path / "q.jsonl.card.md"
    _, head, body = path.read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def test_a_card_counts_what_a_person_asks_first(tmp_path):
    card = Card.of_questions(QUESTIONS, "My questions", "python make.py", seed=3, licence="CC BY 4.0")
    head, body = write(tmp_path, card)
    splits = [{"name": "dev", "num_examples": 1}, {"name": "train", "num_examples": 2}]
    assert head["splits"] == splits
    assert (head["pretty_name"], head["license"]) == ("My questions", "CC BY 4.0")
    assert card.counts == {
        "split": {"dev": 1, "train": 2},
        "source": {"unknown": 1, "world": 2},
        "hops": {"2": 2, "unknown": 1},
        "rubrics": {"0": 1, "1": 1, "2": 1},
        "hidden entities": {"0": 1, "2": 2},
        "answer type": {"date": 1, "entity": 2},
    }
    for line in (
        "# My questions",
        "seed 3:",
        "    python make.py",
        "| hops | count |",
        "| unknown | 1 |",
        f"| q.jsonl | {hashlib.sha256(b'x' + bytes([10])).hexdigest()} |",
    ):
        assert line in body


def test_the_sets_that_questions_come_from_are_credited():
    known = [Question("a", "?", "a", source=source) for source in ("musique_ans", "webshaper")]
    card = Card.of_questions(known, "t", "m")
    assert card.licence == "CC BY 4.0, texts of Wikipedia CC BY-SA; MIT"
    assert [credit.partition(":")[0] for credit in card.credits] == ["MuSiQue", "WebShaper"]
    mixed = Card.of_questions([*known, Question("c", "?", "a", source="mine")], "t", "m")
    assert (mixed.licence, mixed.credits) == ("", card.credits), "nobody knows what a part of it asks for"


def test_the_same_data_give_the_same_card(tmp_path):
    card = Card.of_questions(QUESTIONS, "t", "m")
    assert write(tmp_path, card) == write(tmp_path, card)
    assert write(tmp_path, card) != write(tmp_path, card, b"y\n")


def test_numbers_and_words_of_the_maker_stand_in_the_card(tmp_path):
    facts = {"rejected": 1200, "calls": 0.51234, "kept by": "outcome | rubric\nreward", "frozen": True}
    _, body = write(tmp_path, Card("t", "m", facts=facts, credits=["Ho et al. 2020"]))
    assert "| rejected | 1,200 |\n| calls | 0.5123 |\n| kept by | outcome \\| rubric reward |" in body
    assert "| frozen | True |" in body
    assert "Not known.\n\n- Ho et al. 2020" in body


def test_text_of_the_data_breaks_neither_the_head_nor_a_table(tmp_path):
    evil = '"\n---\nlicense: none\n| x |'
    odd = Question("a", "q", "a", source=evil, split=evil)
    head, body = write(tmp_path, Card.of_questions([odd], evil, evil, licence=evil))
    assert head["license"] == '" --- license: none | x |'
    assert head["splits"] == [{"name": evil, "num_examples": 1}]
    assert '| " --- license: none \\| x \\| | 1 |' in body


def test_a_folder_is_described_file_by_file(tmp_path):
    (tmp_path / "set" / "1.0.0").mkdir(parents=True)
    for name in ("b", "a"):
        (tmp_path / "set" / "1.0.0" / name).write_text(name)
    text = write_card(tmp_path / "set", Card("t", "m")).read_text()
    rows = [f"| 1.0.0/{name} | {hashlib.sha256(name.encode()).hexdigest()} |" for name in "ab"]
    assert text.endswith("\n".join(rows) + "\n")
