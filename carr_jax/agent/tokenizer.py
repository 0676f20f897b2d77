"""Text to token ids and back, with a hard wall between template text and untrusted text.

Qwen3 marks its think and tool tokens `special: false`, so `encode_special_tokens` does not keep them out of a
web page.  Untrusted text therefore goes through a second tokenizer, built from the same file without added
tokens: there no text whatsoever can become a control id.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

PRETOKENIZE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
ADDED = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
STOP = ("<|im_end|>", "<|endoftext|>")
FILE = "tokenizer.json"
LONG = 2_000  # characters that take about a millisecond to tokenise
CONTROL = re.compile("|".join(map(re.escape, (*SPECIAL, *ADDED))))


class Tokenizer:
    """A Hugging Face `tokenizer.json` with one encoder for template text and one for untrusted text.

    `source` is the text of the file; it is kept verbatim, so that `save` and `content_hash` are exact.  Raises
    ValueError when a control token could be produced from plain text, or a stop token is missing.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._control = tokenizers.Tokenizer.from_str(source)
        spec = json.loads(source)
        added = [token["content"] for token in spec["added_tokens"]]
        self._plain = tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))
        leaks = [token for token in added if self._plain.token_to_id(token) is not None]
        if leaks:
            raise ValueError(f"added tokens {leaks} are also in the base vocabulary: text could forge them")
        self.control_ids = frozenset(map(self.id, added))
        self.stop_ids = tuple(map(self.id, STOP))

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read `tokenizer.json` of a Hugging Face model folder."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: copy the model's tokenizer.json there")
        return cls(path.read_bytes().decode())

    def save(self, folder: str | Path) -> Path:
        """Write `tokenizer.json` into `folder`, byte for byte as it was read; returns its path."""
        path = Path(folder) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.source.encode())
        return path

    def content_hash(self) -> str:
        """SHA-256 of the file, in hex."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included (a model's embedding table may be padded beyond it)."""
        return self._control.get_vocab_size(with_added_tokens=True)

    def id(self, token: str) -> int:
        """The id of one token; raises KeyError when the vocabulary lacks it."""
        found = self._control.token_to_id(token)
        if found is None:
            raise KeyError(f"the tokenizer has no token {token!r}; is it a Qwen3 tokenizer?")
        return found

    def encode_control(self, text: str) -> list[int]:
        """Ids of our own template text; added tokens written in it become control ids."""
        return self._control.encode(text, add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of untrusted text; never a control id.  Lone surrogates become U+FFFD.

        A long text lets other threads run meanwhile, which `encode` does not.
        """
        text = _valid_unicode(text)
        if len(text) > LONG:
            return self._plain.encode_batch([text], add_special_tokens=False)[0].ids
        return self._plain.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens included.  Ids outside the vocabulary (padding rows) are left out."""
        return self._control.decode(list(ids), skip_special_tokens=False)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a small byte-level BPE in Qwen3's layout: base ids first, then Qwen3's 26 added tokens.

    `vocab_size` counts all ids; the result is smaller when the texts hold too few pairs to merge.  The same
    texts in the same order give the same file.  Raises ValueError when the 256 bytes do not fit.
    """
    base = vocab_size - len(SPECIAL) - len(ADDED)
    if base < 256:
        raise ValueError(f"vocab_size {vocab_size} is too small: 256 bytes and 26 added tokens need 282")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    add_qwen3_pipeline(tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=base, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    # Control tokens are matched before any merge, so merges that spell them would be wasted.
    pieces = (piece for text in texts for piece in CONTROL.split(text))
    tokenizer.train_from_iterator(pieces, trainer)
    add_qwen3_tokens(tokenizer)
    return Tokenizer(tokenizer.to_str(pretty=True))


def add_qwen3_pipeline(tokenizer: tokenizers.Tokenizer) -> None:
    """Set Qwen3's normaliser, pre-tokeniser, post-processor and decoder."""
    split = pre_tokenizers.Split(tokenizers.Regex(PRETOKENIZE), behavior="isolated", invert=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()


def add_qwen3_tokens(tokenizer: tokenizers.Tokenizer) -> None:
    """Append Qwen3's 14 special and 12 ordinary added tokens, in the order of its files."""
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t in ADDED])


def _valid_unicode(text: str) -> str:
    """Join surrogate pairs and replace lone ones: a JSON escape can smuggle both into a string."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
