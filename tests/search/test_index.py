"""Indexes on disk: what is built, what is refused; they rank as pages in memory and as BM25 by hand do."""

import asyncio
import gzip
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from carr_jax.records import InputError, Page
from carr_jax.search.building import build
from carr_jax.search.corpus import Corpus
from carr_jax.search.dense import DenseSearch, VectorFile, load_encoder, nearest
from carr_jax.search.dump import page_of_row, survey, title_of
from carr_jax.search.fusion import fused
from carr_jax.search.index import Index

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "corpus.jsonl.gz"
PAGES = [
    Page(f"https://w.example/{i}", f"Page {i % 7}", f"ox elk {'bee ' * (i % 5)} word{i}") for i in range(200)
]


def written(path, pages=PAGES):
    open_ = gzip.open if path.suffix == ".gz" else open
    with open_(path, "wt") as file:
        file.writelines(json.dumps({"url": p.url, "title": p.title, "text": p.text}) + "\n" for p in pages)
    return path


def test_disk_ranks_as_memory_does_and_gives_the_same_sessions(tmp_path):
    build(
        [written(tmp_path / "a.jsonl.gz", PAGES[:90]), written(tmp_path / "b.jsonl", PAGES[90:])],
        tmp_path / "x",
    )
    corpus = Corpus(PAGES)
    with Index(tmp_path / "x") as index:
        assert len(index) == 200
        for query in ("page 3 ox bee", "elk", "word17 word3", "", "zzz"):
            assert index.rank(query, 50) == corpus.rank(query, 50)
        assert index.lookup("http://W.example/17#top") == PAGES[17] and index.lookup("w.example/200") is None

        async def played(tools):
            session = tools.session()
            calls = [
                session.search("page ox", 5),
                session.open(2),
                session.find("ELK"),
                session.open("w.example/x"),
            ]
            return [await call for call in calls]

        assert asyncio.run(played(index)) == asyncio.run(played(corpus))


def test_many_searches_at_once_do_not_hold_up_the_event_loop(tmp_path):
    """No search ends before the loop has turned: were they made on the loop, none would ever end."""
    build([written(tmp_path / "a.jsonl")], tmp_path / "x")
    with Index(tmp_path / "x") as index:
        turned = threading.Event()
        rank = index.rank

        def waiting(query, num):
            assert turned.wait(60), "the event loop stands still while a search runs"
            return rank(query, num)

        index.rank = waiting

        async def scenario():
            searches = [asyncio.ensure_future(index.search(f"word{i}", 3)) for i in range(50)]
            await asyncio.sleep(0)  # every search has begun
            turned.set()
            return await asyncio.gather(*searches)

        hits = asyncio.run(scenario())
        assert [h[0].url for h in hits] == [PAGES[i].url for i in range(50)]


@pytest.mark.skipif(not DATA.is_file(), reason="needs ../shared/data/corpus.jsonl.gz")
def test_ranking_equals_an_independent_bm25_on_the_shared_corpus(tmp_path):
    build([DATA], tmp_path / "x")
    with Index(tmp_path / "x") as index, gzip.open(DATA, "rt") as lines:
        rows = [json.loads(line) for line in lines]
        analyze = index.ranker._analyzer.analyze
        fields = [(2.0, [analyze(r["title"]) for r in rows]), (1.0, [analyze(r["text"]) for r in rows])]
        rng = random.Random(0)
        queries = [" ".join(rng.choices(rng.choice(rows)["text"].split() or ["x"], k=5)) for _ in range(40)]
        scores = {q: np.zeros(len(rows)) for q in queries}
        for weight, bags in fields:
            lengths = np.array([coarse(len(bag)) for bag in bags])
            norms = 1.2 * (0.25 + 0.75 * lengths / (sum(map(len, bags)) / len(bags)))
            holders = postings(bags)
            for query in queries:
                for term in dict.fromkeys(analyze(query)):
                    where, counts = holders.get(term, (np.zeros(0, int), np.zeros(0)))
                    idf = math.log(1 + (len(bags) - len(where) + 0.5) / (len(where) + 0.5))
                    scores[query][where] += weight * idf * 2.2 * counts / (counts + norms[where])
        for query in queries:
            ranked = index.rank(query, 10)
            expected = np.sort(scores[query])[::-1][: len(ranked)]
            assert [r.score for r in ranked] == pytest.approx(expected, abs=2e-3)
            of = {row["url"]: score for row, score in zip(rows, scores[query], strict=True)}
            assert [of[r.page.url] for r in ranked] == pytest.approx(expected, abs=2e-3)


def postings(bags):
    holders = {}
    for i, bag in enumerate(bags):
        for term, count in Counter(bag).items():
            holders.setdefault(term, []).append((i, count))
    return {t: (np.array([i for i, _ in h]), np.array([c for _, c in h], float)) for t, h in holders.items()}


def coarse(length):
    """Lengths as the index keeps them, in one byte: exact up to 40, then with three bits after the first."""
    if length < 40:
        return length
    bits = (length - 24).bit_length() - 4
    return 24 + ((length - 24) >> bits << bits)


# ----------------------------------------------------------------------------------------------------- building


def test_rows_of_other_shapes():
    assert page_of_row(b'{"docid": 7, "text": "First line\\nmore", "url": ""}') == Page(
        "7", "First line", "First line\nmore"
    )
    assert page_of_row(b'{"id": "9", "contents": "\\"A Title\\"\\nText"}').title == "A Title"
    front = "---\nauthor: X\ntitle: The Title\ndate: 2020\n---\nBody"
    assert title_of(front) == "The Title"
    assert title_of("---\nBody") == "---"


def test_bad_rows_are_left_out_and_listed(tmp_path):
    path = written(tmp_path / "a.jsonl", PAGES * 1)
    with path.open("a") as file:
        file.write('{"url": "http://W.example/3#x", "title": "again", "text": "x"}\n\n{"url": "u"}\n')
    manifest = build([path], tmp_path / "x")
    assert (manifest["pages"], manifest["rejected"]) == (200, 2)
    rows = [json.loads(line) for line in (tmp_path / "x" / "rejected.jsonl").read_text().splitlines()]
    assert [(r["file"], r["line"]) for r in rows] == [(str(path), 201), (str(path), 203)]
    assert f"({path}:4)" in rows[0]["reason"] and rows[1]["reason"].startswith("text or contents")
    with Index(tmp_path / "x") as index:
        assert index.lookup(PAGES[3].url) == PAGES[3]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", "no pages"),
        ("{}\n", "1 of 1 rows are no pages"),
        ("nonsense\n" * 5 + '{"url": "a", "text": "b"}\n', "5 of 6 rows"),
        ("[]\n", "no object"),
        ('{"url": "a", "title": 3, "text": "b"}\n', "title must be a string"),
        ('{"url": true, "text": "b"}\n', "url or docid or id"),
    ],
)
def test_files_of_another_kind_are_refused(rows, says, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(rows)
    with pytest.raises(InputError, match=says):
        build([path], tmp_path / "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl"]


def test_a_torn_gz_names_its_line(tmp_path):
    path = written(tmp_path / "a.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(InputError, match=r"a\.jsonl\.gz:\d+: cannot be read on"):
        survey([path])


def test_the_same_command_keeps_an_index_and_refuses_another(tmp_path):
    path = written(tmp_path / "a.jsonl")
    first = build([path], tmp_path / "x")
    before = (tmp_path / "x" / "manifest.json").stat().st_mtime_ns
    assert build([path], tmp_path / "x") == first
    assert (tmp_path / "x" / "manifest.json").stat().st_mtime_ns == before
    written(path, PAGES[:5])
    with pytest.raises(InputError, match="other pages"):
        build([path], tmp_path / "x")


def test_what_is_no_whole_index_is_refused(tmp_path):
    with pytest.raises(InputError, match="this is no index"):
        Index(tmp_path)
    build([written(tmp_path / "a.jsonl")], tmp_path / "x")
    manifest = tmp_path / "x" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"pages": 200', '"pages": 201'))
    with pytest.raises(InputError, match="holds 200 pages where its manifest says 201"):
        Index(tmp_path / "x")
    manifest.write_text(text.replace('"layout": 2', '"layout": 1'))
    with pytest.raises(InputError, match="another version"):
        Index(tmp_path / "x")
    manifest.write_text(text)
    (tmp_path / "x" / "words" / "meta.json").unlink()
    with pytest.raises(InputError, match="cannot be opened"):
        Index(tmp_path / "x")


def test_a_killed_build_leaves_no_index_and_the_next_one_works(tmp_path):
    path = written(tmp_path / "a.jsonl", [Page(f"u{i}", "t", f"word{i} " * 50) for i in range(30_000)])
    command = [sys.executable, "launch/build_index.py", str(path), f"--out={tmp_path / 'x'}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not (tmp_path / "x.part" / "words").exists():
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "x").exists() and (tmp_path / "x.part").exists()
    assert build([path], tmp_path / "x")["pages"] == 30_000
    assert not (tmp_path / "x.part").exists()


def test_two_builds_of_one_folder_do_not_meet(tmp_path):
    import fcntl

    (tmp_path / "x.part").mkdir()
    held = os.open(tmp_path / "x.part", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another process"):
        build([written(tmp_path / "a.jsonl")], tmp_path / "x")
    os.close(held)


# -------------------------------------------------------------------------------------------------------- dense


class Letters:
    """A hand-made encoder: how often each letter stands in a text."""

    def documents(self, texts):
        return np.array([[text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts])

    def query(self, text):
        return self.documents([text])[0]


def test_fusion_by_hand():
    assert [n for n, _ in fused([[1, 2, 3], [3, 4]])] == [3, 1, 2, 4]
    assert dict(fused([[1, 2, 3], [3, 4]]))[3] == pytest.approx(1 / 63 + 1 / 61)
    assert fused([[], []]) == []


def test_nearest_is_exact_whatever_the_blocks(monkeypatch):
    vectors = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float16)
    vectors[77] = vectors[13]
    query = vectors[13].astype(np.float32)
    expected = np.argsort(-(vectors.astype(np.float32) @ query), kind="stable")[:20].tolist()
    for size in (32, 400, 1 << 20):
        monkeypatch.setattr("carr_jax.search.dense._BLOCK_BYTES", size)
        assert nearest(vectors, query, 20) == expected


def test_search_by_words_and_meaning(tmp_path):
    pages = [Page("u0", "zz", "zebra zoo"), Page("u1", "aa", "banana"), Page("u2", "bb", "zoo")]
    build(
        [written(tmp_path / "a.jsonl", pages)], tmp_path / "x", encoder=Letters(), dense_sha256="made by hand"
    )
    vectors = np.load(tmp_path / "x" / "vectors.npy", mmap_mode="r")
    assert vectors.shape == (3, 26) and vectors.dtype == np.float16
    assert np.linalg.norm(vectors.astype(np.float32), axis=1) == pytest.approx(1, abs=1e-3)
    with Index(tmp_path / "x") as index:
        assert [r.page.url for r in index.rank("banan", 3)] == []  # no such word
        index._dense = DenseSearch(vectors, Letters())
        assert [r.page.url for r in index.rank("banan", 1)] == ["u1"]
        assert [r.page.url for r in index.rank("zoo", 3)][0] == "u2"  # first in both
    with pytest.raises(InputError, match="another dense model"):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text("{}")
        Index(tmp_path / "x", dense_model=str(tmp_path / "model"))


def test_dense_search_says_what_it_lacks(tmp_path, monkeypatch):
    build([written(tmp_path / "a.jsonl")], tmp_path / "x")
    with pytest.raises(InputError, match="built without a dense model"):
        Index(tmp_path / "x", dense_model="m")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"carr_jax\[dense\]"):
        load_encoder("m")


def test_vectors_fill_their_file_in_batches(tmp_path):
    file = VectorFile(tmp_path, 5, Letters())
    file.add(["a", "b"])
    file.add(["c", "", "e"])
    file.close()
    assert np.load(tmp_path / "vectors.npy").argmax(1).tolist() == [0, 1, 2, 0, 4]
