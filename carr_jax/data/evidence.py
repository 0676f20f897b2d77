"""Evidence becomes rubrics and hidden entities, without a model: 2WikiMultihopQA, MuSiQue, HotpotQA.

Hop k gets the entity `<Ek>`, the answer `<E0>`; each hop is one single-hop statement that cites the page it
stands on.  A row has `dataset`, `hops` and `support_titles`; `data.originals` brings the files that the authors
of the three sets published into this form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from carr_jax.data.files import Row, text, texts
from carr_jax.records import Question, Rubric
from carr_jax.rewards.matching import compare

SETS = ("2wikimultihopqa", "musique_ans", "hotpotqa_distractor")
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


def from_evidence(row: Row, urls: Mapping[str, str]) -> Question:
    """A row of one of the three sets; `urls` are the addresses of pages by title.

    Raises KeyError, TypeError, IndexError or ValueError that says what is wrong.
    """
    if row["dataset"] not in SETS:
        raise ValueError(f"unknown dataset {row['dataset']!r}; known are {', '.join(SETS)}")
    make = dict(zip(SETS, (_from_2wiki, _from_musique, _from_hotpotqa), strict=True))[row["dataset"]]
    rubrics, entities, walk = make(row, urls)
    titles = texts("support_titles", row["support_titles"])
    return Question(
        **{key: text(row, key) for key in ("id", "question", "answer", "answer_type", "split")},
        answer_aliases=texts("answer_aliases", row.get("answer_aliases", [])),
        rubrics=tuple(rubrics),
        entities=entities,
        gold_urls=tuple(dict.fromkeys(_url(title, urls) for title in titles)),
        hops=len(row.get("hops") or row["supports"]),
        source=row["dataset"],
        metadata={"walk": walk, "type": row.get("type", ""), "upstream_split": row.get("upstream_split", "")},
    )


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
