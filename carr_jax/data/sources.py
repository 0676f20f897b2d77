"""Questions and pages from files.

Two shapes of question rows are read: our own (`records.to_json`), and the multi-hop sets with evidence
(2WikiMultihopQA, MuSiQue, HotpotQA), whose evidence becomes rubrics and hidden entities without a model: hop k
gets the entity `<Ek>`, the answer `<E0>`, each hop one single-hop statement that cites the page it stands on.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from carr_jax.data.frozen import check_frozen
from carr_jax.records import InputError, Page, Question, Rubric
from carr_jax.rewards.lint import structure
from carr_jax.rewards.matching import compare
from carr_jax.stored import question_from_json

CORPUS_FILES = ("corpus.jsonl", "corpus.jsonl.gz")
_SHOWN_ERRORS = 10
_WIKI = "https://en.wikipedia.org/wiki/"
_PLAIN_IN_URL = "_-'()./:,@&+=!;$*"
_STATEMENTS = {
    "director": "The director of {s} was {o}.",
    "producer": "The producer of {s} was {o}.",
    "composer": "The composer of {s} was {o}.",
    "performer": "The performer of {s} was {o}.",
    "publisher": "The publisher of {s} was {o}.",
    "founded by": "The founder of {s} was {o}.",
    "inception": "{s} came into being in {o}.",
    "publication date": "{s} came out in {o}.",
    "father": "{o} was the father of {s}.",
    "mother": "{o} was the mother of {s}.",
    "spouse": "{o} was the spouse of {s}.",
    "sibling": "{o} was a sibling of {s}.",
    "child": "{o} was a child of {s}.",
    "place of birth": "{s} was born in {o}.",
    "place of death": "{s} died in {o}.",
    "place of burial": "The grave of {s} is in {o}.",
    "date of birth": "{s} was born on {o}.",
    "date of death": "{s} died on {o}.",
    "cause of death": "The cause of death of {s} was {o}.",
    "country of citizenship": "{s} was a citizen of {o}.",
    "country": "The country of {s} is {o}.",
    "country of origin": "The country of origin of {s} is {o}.",
    "educated at": "{s} studied at {o}.",
    "employer": "The employer of {s} was {o}.",
    "award received": "{s} was awarded {o}.",
}

Row = Mapping[str, Any]
Item = TypeVar("Item")


def read_questions(path: str | Path, split: str | None = None) -> list[Question]:
    """The questions of a .jsonl(.gz) file, or of all question files of a directory; only of `split` if given.

    In a directory, every .jsonl(.gz) file but the corpus is read, by name.  A corpus beside the questions
    gives the support URLs; without it, a title has its Wikipedia address.  Raises InputError with file, line
    and reason of the bad rows (the first ten, and how many there are), or for a file that is not there or was
    changed since it was frozen.
    """
    path = Path(path)
    files = _question_files(path)
    for file in files:
        check_frozen(file)
    corpus = _corpus_file(path if path.is_dir() else path.parent)
    urls = {page.title: page.url for page in read_pages(corpus)} if corpus else {}
    places: dict[str, str] = {}

    def parse(row: Row, place: str) -> Question:
        question = question_from_row(row, urls)
        if question.id in places:
            raise ValueError(f"the id {question.id!r} is taken by {places[question.id]}")
        places[question.id] = place
        return question

    questions = [q for q in _parse_all(files, parse) if split is None or q.split == split]
    if not questions:
        raise InputError(f"{path}: no questions" + (f" of split {split!r}; check its name" if split else ""))
    return questions


def read_pages(path: str | Path) -> list[Page]:
    """Pages with the keys url, title, text from a .jsonl(.gz) file, or the corpus file of a directory."""
    file = _corpus_file(Path(path)) if Path(path).is_dir() else Path(path)
    if file is None:
        raise InputError(f"{path}: no {' or '.join(CORPUS_FILES)} in this directory")
    return _parse_all([file], lambda row, _: Page(_text(row, "url"), _text(row, "title"), _text(row, "text")))


def question_from_row(row: Row, urls: Mapping[str, str]) -> Question:
    """One row in any of the known shapes.  Raises KeyError, TypeError or ValueError that says what is wrong."""
    texts = {key: _text(row, key) for key in ("id", "question", "answer")}
    _check_lists(row)
    question = _from_evidence(row, texts, urls) if "dataset" in row else question_from_json(row)
    if problems := structure(question):
        raise ValueError("; ".join(problems))
    return question


def _from_evidence(row: Row, texts: Mapping[str, str], urls: Mapping[str, str]) -> Question:
    make = {"2wikimultihopqa": _from_2wiki, "musique_ans": _from_musique, "hotpotqa_distractor": _from_hotpotqa}
    if row["dataset"] not in make:
        raise ValueError(f"unknown dataset {row['dataset']!r}; known are {', '.join(make)}")
    rubrics, entities, walk = make[row["dataset"]](row, urls)
    return Question(
        **texts,
        answer_aliases=tuple(row.get("answer_aliases", ())),
        answer_type=_text(row, "answer_type"),
        rubrics=tuple(rubrics),
        entities=entities,
        gold_urls=tuple(dict.fromkeys(_url(title, urls) for title in row["support_titles"])),
        hops=len(row.get("hops") or row["supports"]),
        source=row["dataset"],
        split=_text(row, "split"),
        metadata={"walk": walk, "type": row.get("type", ""), "upstream_split": row.get("upstream_split", "")},
    )


# ------------------------------------------------------------------------------------- evidence to rubrics

Evidence = tuple[list[Rubric], dict[str, tuple[str, ...]], list[dict[str, str]]]


def _from_hotpotqa(row: Row, urls: Mapping[str, str]) -> Evidence:
    """Supporting sentences name no hidden entity: outcome reward only."""
    return [], {}, []


def _from_musique(row: Row, urls: Mapping[str, str]) -> Evidence:
    """Hop k has the entity <Ek>, the last hop <E0>; `#k` in a subquestion stands for hop k's answer."""
    hops = row["hops"]
    places = [*_places(len(hops) - 1), "<E0>"]
    entities = {"E0": _names(row["answer"], *row.get("answer_aliases", ()), hops[-1]["answer"])}
    entities |= {place[1:-1]: (hop["answer"],) for hop, place in zip(hops[:-1], places, strict=False)}
    rubrics, walk = [], []
    for k, (hop, place) in enumerate(zip(hops, places, strict=True)):
        url, asked = _url(hop["support_title"], urls), _refer(hop["subquestion"], places[:k])
        if relation := hop.get("relation", ""):
            subject = _refer(hop["subject"], places[:k])
            text, query = _statement(relation, subject, place), f"{subject} {relation}"
        else:
            subject, query = "", asked
            text = f'"{asked.rstrip("? ")}?" is answered by {place}.'
        rubrics.append(Rubric(text, (url,)))
        walk.append(_step(subject, relation, place, url, query) | {"subquestion": asked})
    return rubrics, entities, walk


def _from_2wiki(row: Row, urls: Mapping[str, str]) -> Evidence:
    """By `answer_role`: the last object is <E0>, or <E0> is one of the compared subjects."""
    if not row["rubric_ok"]:
        return [], {}, []
    role = row["answer_role"]
    if role not in ("last_object", "subject"):
        raise ValueError(f"answer_role must be last_object or subject when rubric_ok, got {role!r}")
    hops = row["hops"]
    answer = _names(row["answer"], *row.get("answer_aliases", ()))
    places = _places(len(hops)) if role == "subject" else [*_places(len(hops) - 1), "<E0>"]
    objects = [_names(hop["object"], *hop.get("object_aliases", ())) for hop in hops]
    entities = {place[1:-1]: names for place, names in zip(places, objects, strict=True)}
    entities["E0"] = _names(*answer, *entities.get("E0", ()))
    rubrics, walk = [], []
    for k, (hop, place) in enumerate(zip(hops, places, strict=True)):
        subject = _subject(hop, places[:k], answer if role == "subject" else ())
        url, relation = _url(hop["support_title"], urls), hop["relation"]
        rubrics.append(Rubric(_statement(relation, subject, place), (url,)))
        walk.append(_step(subject, relation, place, url, f"{subject} {relation}"))
    if role == "subject":
        rubrics.append(_comparison(hops, places, walk))
    return rubrics, dict(sorted(entities.items())), walk


def _subject(hop: Row, earlier: Sequence[str], answer: Sequence[str]) -> str:
    """A hop that starts from an earlier hop's object, or from the compared answer, has a placeholder there."""
    if hop.get("refs"):
        return earlier[hop["refs"][0] - 1]
    return "<E0>" if hop["subject"] in answer else hop["subject"]


def _comparison(hops: Sequence[Row], places: Sequence[str], walk: Sequence[Mapping[str, str]]) -> Rubric:
    """Ties the two compared values, the answer's first: without it the other branch never reaches <E0>.

    Raises ValueError unless two comparable values end the two branches.
    """
    inner = {ref for hop in hops for ref in hop.get("refs", ())}
    ends = [k for k in range(len(hops)) if k + 1 not in inner]
    ends.sort(key=lambda k: _root(k, hops, walk) != "<E0>")
    if len(ends) != 2:
        raise ValueError(f"a comparison needs two compared values, got {len(ends)}")
    first, second = (hops[k]["object"] for k in ends)
    order = compare(first, second)
    if not order:
        raise ValueError(f"cannot tell which of {first!r} and {second!r} is earlier")
    relation = "earlier" if order < 0 else "later"
    return Rubric(f"{places[ends[0]]} is {relation} than {places[ends[1]]}.", (), relation)


def _root(k: int, hops: Sequence[Row], walk: Sequence[Mapping[str, str]]) -> str:
    """What the branch of hop `k` starts from."""
    while refs := hops[k].get("refs"):
        k = refs[0] - 1
    return walk[k]["subject"]


def _places(count: int) -> list[str]:
    return [f"<E{k}>" for k in range(1, count + 1)]


def _refer(text: str, earlier: Sequence[str]) -> str:
    """`text` with `#k` replaced by the placeholder of hop k.  Raises IndexError unless that hop is earlier."""
    return re.sub(r"#(\d+)", lambda match: earlier[int(match[1]) - 1], text)


def _statement(relation: str, subject: str, place: str) -> str:
    if relation in _STATEMENTS:
        return _STATEMENTS[relation].format(s=subject, o=place)
    return f'The "{relation}" of {subject} is {place}.'


def _step(subject: str, relation: str, object: str, url: str, query: str) -> dict[str, str]:
    return {"subject": subject, "relation": relation, "object": object, "url": url, "query": query}


def _names(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _url(title: str, urls: Mapping[str, str]) -> str:
    return urls.get(title) or _WIKI + quote(title.replace(" ", "_"), safe=_PLAIN_IN_URL)


# ------------------------------------------------------------------------------------------------- files


def _question_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [
        f for pattern in ("*.jsonl", "*.jsonl.gz") for f in path.glob(pattern) if f.name not in CORPUS_FILES
    ]
    if not files:
        raise InputError(f"{path}: no question files (*.jsonl or *.jsonl.gz) in this directory")
    return sorted(files)


def _corpus_file(folder: Path) -> Path | None:
    return next((folder / name for name in CORPUS_FILES if (folder / name).exists()), None)


def _parse_all(files: Sequence[Path], parse: Callable[[Row, str], Item]) -> list[Item]:
    """Every row of every file; all bad rows are reported together, before anything costly starts."""
    items, errors = [], []
    for place, line in (pair for file in files for pair in _lines(file)):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise TypeError(f"a row must be a JSON object, got {type(row).__name__}")
            items.append(parse(row, place))
        except KeyError as error:
            errors.append(f"{place}: the key {error} is missing")
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            errors.append(f"{place}: {error}")
    if errors:
        more = [f"... and {len(errors) - _SHOWN_ERRORS} more"] if len(errors) > _SHOWN_ERRORS else []
        raise InputError(
            "\n".join([f"{len(errors)} bad rows; mend or remove them", *errors[:_SHOWN_ERRORS], *more])
        )
    return items


def _lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """("file:line", raw line) of each line that is not blank."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            yield from ((f"{file}:{n}", line) for n, line in enumerate(stream, 1) if line.strip())
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{file}: not a whole gzip file ({error}); fetch it again") from error


def _check_lists(row: Row) -> None:
    """A text where a list of texts belongs would be read letter by letter."""
    lists = {key: row[key] for key in ("answer_aliases", "gold_urls", "support_titles") if key in row}
    lists |= {f"entities {key}": value for key, value in row.get("entities", {}).items()}
    for key, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise TypeError(f"{key} must be a list of texts, got {value!r}")


def _text(row: Row, key: str) -> str:
    if not isinstance(row[key], str) or not row[key].strip():
        raise TypeError(f"{key!r} must be a text that is not empty, got {row[key]!r}")
    row[key].encode()  # a lone surrogate would fail much later, in a tokenizer
    return row[key]
