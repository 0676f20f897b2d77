# make demo    train the tiny search agent with C-GRPO (about 12 minutes on two cores)
# make test    run the test suite               make lint    ruff
# make venv    only make the environment        make clean   remove it and the demo run
# make test-sglang  the engine's contract against a real SGLang server on this CPU (installs 3 GB, once)
# make test-llm-server  the judge against a real small model behind a real server (installs 200 MB, once)
# make plans   compile the large training steps for TPUs that are not there, and write docs/plans.md

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN ?= runs/tiny

.PHONY: venv venv-sglang venv-llm demo test test-slow test-sglang test-llm-server lint sft plans clean

venv: $(STAMP)

$(STAMP): setup.py constraints.txt
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); sys.exit(0 if ok else "carr_jax needs Python 3.11 to 3.13, found " + sys.version.split()[0] + "; choose one with: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python launch/train.py --config=configs/c_grpo_tiny.py --workdir=$(RUN)

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# SGLang for a CPU, in its own environment: see constraints-sglang.txt.
SGLANG ?= .venv-sglang
SGLANG_STAMP := $(SGLANG)/.installed
SGLANG_PYTHON ?= python3.11

venv-sglang: $(SGLANG_STAMP)

$(SGLANG_STAMP): constraints-sglang.txt
	@test -x $(SGLANG)/bin/python || $(SGLANG_PYTHON) -m venv $(SGLANG)
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-sglang.txt
	$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23 torchvision==0.28.0
	@touch $(SGLANG_STAMP)

test-sglang: $(STAMP) $(SGLANG_STAMP)
	$(BIN)/python tests/rollout/real_sglang.py $(SGLANG)/bin/python

# llama.cpp and a small model for it, in their own environment, where the test looks for them.
LLM := .venv-llm
LLM_STAMP := $(LLM)/.installed

venv-llm: $(LLM_STAMP)

$(LLM_STAMP): constraints-llm.txt
	@test -x $(LLM)/bin/python || $(PYTHON) -m venv $(LLM)
	$(LLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-llm.txt
	@touch $(LLM_STAMP)

test-llm-server: $(STAMP) $(LLM_STAMP)
	$(BIN)/python -m pytest -m slow -s tests/rewards/test_real_judge.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Makes again the warm-started policy that ships in carr_jax/assets/sft_tiny (about an hour on two cores).
sft: $(STAMP)
	$(BIN)/python launch/sft.py --config=configs/sft_tiny.py --workdir=runs/sft_tiny
	$(BIN)/python launch/sft.py --config=configs/sft_tiny_again.py --workdir=runs/sft_tiny_again
	$(BIN)/python launch/sft.py --config=configs/sft_tiny_wander.py --workdir=runs/sft_tiny_wander
	cp runs/sft_tiny_wander/policy/* carr_jax/assets/sft_tiny/

# Some ten large programs, each two to five CPU minutes and up to 4 GB.
plans: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plan]'
	$(BIN)/python launch/plan.py --table=docs/plans.md

clean:
	rm -rf $(VENV) $(RUN)
