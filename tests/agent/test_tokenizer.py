import base64
import functools
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen3_tokenizer import SHA256, ranks_file

from carr_jax.agent.tokenizer import ADDED, LONG, PRETOKENIZE, SPECIAL, Tokenizer, train_bpe

CONTROL = (*SPECIAL, *ADDED)
hostile = st.lists(st.one_of(st.sampled_from(CONTROL), st.text(max_size=8)), max_size=6).map("".join)


def test_qwen3_is_rebuilt_byte_for_byte(qwen3):
    assert qwen3.content_hash() == SHA256
    assert qwen3.vocab_size == 151_669
    assert qwen3.stop_ids == (151_645, 151_643)
    expected = {
        "<tool_call>": 151_657,
        "</tool_call>": 151_658,
        "<tool_response>": 151_665,
        "</think>": 151_668,
    }
    assert {token: qwen3.id(token) for token in expected} == expected
    assert qwen3.encode_plain("Hello world") == [9707, 1879]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x17F, exclude_categories=["Cc", "Cs"]), max_size=40))
def test_qwen3_agrees_with_tiktoken(qwen3, text):
    assert qwen3.encode_plain(text) == _tiktoken().encode_ordinary(unicodedata.normalize("NFC", text))


@functools.cache
def _tiktoken():
    tiktoken = pytest.importorskip("tiktoken", reason="the independent encoder of this test")
    lines = [line.split() for line in ranks_file().read_bytes().splitlines()]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding("qwen3", pat_str=PRETOKENIZE, mergeable_ranks=ranks, special_tokens={})


@settings(max_examples=80, deadline=None)
@given(text=hostile)
def test_plain_text_never_becomes_a_control_id(tokenizer, text):
    ids = tokenizer.encode_plain(text)
    assert not tokenizer.control_ids & set(ids)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("token", CONTROL)
def test_template_text_does_become_control_ids(tokenizer, token):
    ids = tokenizer.encode_control(f"a{token}b")
    assert [i for i in ids if i in tokenizer.control_ids] == [tokenizer.id(token)]
    assert tokenizer.decode(ids) == f"a{token}b"


def test_tiny_layout_is_base_then_qwen3s_added_tokens(tiny):
    base = tiny.vocab_size - 26
    assert [tiny.id(token) for token in CONTROL] == list(range(base, base + 26))
    assert max(tiny.encode_plain("".join(map(chr, range(0x250))))) < base
    assert json.loads(tiny.source)["model"]["merges"]  # learned something beyond bytes


def test_training_is_deterministic_across_processes():
    texts = ["ab ba abc bca cab"] * 9
    code = f"from carr_jax.agent.tokenizer import train_bpe; print(train_bpe({texts}, 300).content_hash())"
    root = Path(__file__).parents[2]
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {train_bpe(texts, 300).content_hash() + "\n"}


def test_no_merge_is_spent_on_control_tokens():
    assert train_bpe(["a<|im_end|>b<think>"] * 50, 300).vocab_size == 282


def test_vocabulary_size_counts_added_tokens():
    assert train_bpe(["abc abd abe " * 5] * 4, 284).vocab_size == 284
    with pytest.raises(ValueError, match="282"):
        train_bpe(["a"], 281)


def test_save_and_load_keep_every_byte(tiny, tmp_path):
    path = tiny.save(tmp_path / "new" / "folder")
    assert path.read_bytes() == tiny.source.encode()
    again = Tokenizer.load(path.parent)
    assert again.content_hash() == tiny.content_hash()
    assert again.encode_control("<think>\nthe river") == tiny.encode_control("<think>\nthe river")
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_forgeable_control_token_is_refused(tiny):
    spec = json.loads(tiny.source)
    spec["model"]["vocab"]["<think>"] = len(spec["model"]["vocab"])
    with pytest.raises(ValueError, match="<think>"):
        Tokenizer(json.dumps(spec))


def test_another_models_tokenizer_is_refused(tiny):
    spec = json.loads(tiny.source)
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] != "<|im_end|>"]
    with pytest.raises(KeyError, match="im_end"):
        Tokenizer(json.dumps(spec))


def test_ids_in_the_padding_of_the_embedding_are_tolerated(tokenizer):
    ids = tokenizer.encode_plain("river")
    assert tokenizer.decode([*ids, tokenizer.vocab_size + 7, *ids]) == "riverriver"


def test_long_texts_are_tokenised_as_short_ones_are(tiny, monkeypatch):
    """They take another way, on which other threads run meanwhile."""
    text = "".join(f"{marker} and\n\ud800 so on, Zoë. " for marker in CONTROL) * 8
    assert len(text) > LONG
    long = tiny.encode_plain(text)
    monkeypatch.setattr("carr_jax.agent.tokenizer.LONG", len(text))
    assert long == tiny.encode_plain(text)


def test_lone_surrogates_are_replaced(tokenizer):
    assert tokenizer.decode(tokenizer.encode_plain("a\ud83db")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode_plain("\ud83d\ude00")) == "\U0001f600"


def test_a_character_split_over_tokens_is_whole_when_decoded_at_once(tiny):
    ids = tiny.encode_plain("한국어")
    assert len(ids) > 3
    assert tiny.decode(ids) == "한국어"
