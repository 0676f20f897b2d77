"""Rows of 2WikiMultihopQA, MuSiQue and HotpotQA as their authors published them, made fit for `data.evidence`.

    2WikiMultihopQA  _id, type, question, answer, evidences (triples), supporting_facts, context
    MuSiQue          id, question, answer, answer_aliases, question_decomposition, paragraphs, answerable
    HotpotQA         _id, type, question, answer, supporting_facts, context

Lists may come as the columns that the hub's copies have ({"title": [...], "sent_id": [...]}) or as JSON texts.
What these do not say is worked out: which hop starts from which, and whether the evidence names the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from carr_jax.data.files import Row, text
from carr_jax.rewards.matching import compare, fold_name, parse_date, parse_number

_CHAINS = ("compositional", "inference")
_BACK = {"compositional": 1, "inference": 1, "bridge_comparison": 2}  # hops between a hop and where it starts
_RELATED = " >> "  # in MuSiQue: subject >> relation


def is_original(row: Row) -> bool:
    """Whether a row is in one of the three published forms."""
    return any(key in row for key in ("evidences", "question_decomposition", "supporting_facts"))


def in_bundle_form(row: Row, split: str) -> Row:
    """The row as `data.evidence` reads it; `split` is that of its file.

    Raises KeyError, TypeError, IndexError or ValueError that says what is wrong.
    """
    if "evidences" in row:
        own = _2wiki(row)
    elif "question_decomposition" in row:
        own = _musique(row)
    else:
        own = {"dataset": "hotpotqa_distractor", "supports": _supports(row), "rubric_ok": False}
        own["support_titles"] = [s["support_title"] for s in own["supports"]]
    answer = text(row, "answer")
    return {
        "id": row.get("_id", row.get("id")),
        "split": split,
        "type": row.get("type", ""),
        "question": row["question"],
        "answer": answer,
        "answer_type": answer_type(answer),
        "answer_aliases": row.get("answer_aliases", []),
        **own,
    }


def answer_type(answer: str) -> str:
    """entity, date, number or yesno, as far as a text tells."""
    if answer.strip().lower() in ("yes", "no"):
        return "yesno"
    if parse_date(answer):
        return "date"
    number = parse_number(answer)
    return "number" if number is not None and len(number[1].split()) < 2 else "entity"


# ---------------------------------------------------------------------------------------------- 2WikiMultihopQA


def _2wiki(row: Row) -> dict[str, Any]:
    titles = [s["support_title"] for s in _supports(row)]
    hops = [_triple(triple) for triple in _listed(row["evidences"], ("fact", "relation", "entity"))]
    if not hops:
        raise ValueError("evidences are empty")
    for k, hop in enumerate(hops):
        hop["support_title"] = _title(hop["subject"], k, titles, len(hops))
        _refer(hops, k, _BACK.get(row["type"], 0))
    role = _role(row["answer"], hops, row["type"] in _CHAINS)
    spellings = [hop["subject"] for hop in hops if _same(hop["subject"], row["answer"])]
    return {
        "dataset": "2wikimultihopqa",
        "answer_aliases": sorted({*spellings} - {row["answer"]}) if role == "subject" else [],
        "hops": hops,
        "support_titles": titles,
        "answer_role": role,
        "rubric_ok": role == "last_object" or (role == "subject" and _comparable(hops)),
    }


def _triple(triple: Sequence[str]) -> dict[str, Any]:
    subject, relation, object = triple
    if not all(isinstance(part, str) and part.strip() for part in triple):
        raise TypeError(f"an evidence must be three texts, got {triple!r:.80}")
    return {"subject": subject, "relation": relation, "object": object}


def _refer(hops: Sequence[dict[str, Any]], k: int, back: int) -> None:
    """Marks the earlier hop that hop `k` starts from: the one with its subject as object, else the one `back`.

    The subject, and the title of its page, are then further names of that object.
    """
    found = next((i for i in range(k) if _same(hops[i]["object"], hops[k]["subject"])), k - back)
    if not 0 <= found < k:
        return
    hops[k]["refs"] = [found + 1]
    names = (*hops[found].get("object_aliases", ()), hops[k]["subject"], hops[k]["support_title"])
    hops[found]["object_aliases"] = [n for n in dict.fromkeys(names) if n != hops[found]["object"]]


def _title(subject: str, k: int, titles: Sequence[str], hops: int) -> str:
    """The supporting page of a hop: the one that bears its subject's name, else the k-th."""
    for title in titles:
        if _same(title, subject):
            return title
    named = [title for title in titles if _same(title.partition(" (")[0], subject.partition(" (")[0])]
    if len(named) == 1:
        return named[0]
    if len(titles) == hops:
        return titles[k]
    raise ValueError(f"no supporting fact is on a page of {subject!r:.80}")


def _role(answer: str, hops: Sequence[Row], chain: bool) -> str:
    """Where the answer stands in the evidence."""
    if answer_type(answer) == "yesno":
        return "yesno"
    if chain:
        return "last_object" if _same(hops[-1]["object"], answer) else "elsewhere"
    return "subject" if any(_same(hop["subject"], answer) for hop in hops) else "elsewhere"


def _same(name: str, other: str) -> bool:
    """The same but for case, accents and punctuation: questions write titles in other cases than pages."""
    return fold_name(name) == fold_name(other)


def _comparable(hops: Sequence[Row]) -> bool:
    """Whether two values end two branches, and their order is known."""
    inner = {ref for hop in hops for ref in hop.get("refs", ())}
    ends = [hop["object"] for k, hop in enumerate(hops, 1) if k not in inner]
    return len(ends) == 2 and bool(compare(*ends))


# -------------------------------------------------------------------------------------------- MuSiQue, HotpotQA


def _musique(row: Row) -> dict[str, Any]:
    if not row.get("answerable", True):
        raise ValueError("the question is not answerable; take MuSiQue-Ans")
    paragraphs = {p["idx"]: text(p, "title") for p in row["paragraphs"]}
    hops = [_subquestion(part, paragraphs) for part in row["question_decomposition"]]
    if not hops:
        raise ValueError("question_decomposition is empty")
    return {
        "dataset": "musique_ans",
        "type": str(row["id"]).partition("__")[0],
        "hops": hops,
        "support_titles": [hop["support_title"] for hop in hops],
        "rubric_ok": True,
    }


def _subquestion(part: Row, paragraphs: Mapping[int, str]) -> dict[str, Any]:
    title = paragraphs[part["paragraph_support_idx"]]
    hop = {"subquestion": text(part, "question"), "answer": text(part, "answer"), "support_title": title}
    subject, related, relation = hop["subquestion"].partition(_RELATED)
    return hop | ({"subject": subject.strip(), "relation": relation.strip()} if related else {})


def _supports(row: Row) -> list[dict[str, str]]:
    """One row for each supporting page, in order."""
    facts = _listed(row["supporting_facts"], ("title", "sent_id"))
    titles = dict.fromkeys(fact[0] for fact in facts)
    if not titles or not all(isinstance(title, str) and title.strip() for title in titles):
        raise ValueError("supporting_facts name no pages")
    return [{"support_title": title} for title in titles]


def _listed(value: Any, columns: Sequence[str]) -> list[Sequence[Any]]:
    """A list of tuples, from that, from its JSON text, or from a table of columns."""
    if isinstance(value, str):
        value = json.loads(value)
    if isinstance(value, Mapping):
        value = list(zip(*(value[column] for column in columns), strict=True))
    if not isinstance(value, list) or not all(isinstance(item, list | tuple) for item in value):
        raise TypeError(f"expected a list of lists, got {value!r:.80}")
    return value
