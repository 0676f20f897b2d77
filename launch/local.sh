#!/usr/bin/env bash
# One box, CPU or any number of GPUs, one process:
#
#   launch/local.sh [--dry-run] sft --config=configs/sft_tiny.py --workdir=runs/sft_tiny
#
# PYTHON  interpreter with the dependencies (default .venv/bin/python, which `make venv` makes)
# XLA_FLAGS, XLA_PYTHON_CLIENT_MEM_FRACTION  as jax reads them; the defaults for GPUs are below
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/common.sh

has_module() { "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

PYTHON="${PYTHON:-.venv/bin/python}"
gpus=0
if command -v nvidia-smi >/dev/null; then
    gpus="$(nvidia-smi --list-gpus | grep -c . || true)"
fi

read_arguments "$@"
if ! command -v "$PYTHON" >/dev/null; then
    missing "the interpreter $PYTHON (make venv, or set PYTHON)"
elif ! has_module jax || ! has_module flax; then
    missing "jax and flax for $PYTHON (make venv)"
elif ((gpus > 0)) && ! has_module jax_cuda13_plugin && ! has_module jax_cuda12_plugin; then
    missing "jax for the $gpus GPUs of this box ($PYTHON -m pip install -c constraints.txt -e '.[cuda]')"
fi
end_of_preflight

settings=()
if ((gpus > 0)); then
    settings+=("XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}")
    settings+=("XLA_FLAGS=${XLA_FLAGS:---xla_gpu_enable_latency_hiding_scheduler=true}")
fi
run env "${settings[@]}" "$PYTHON" "launch/$JOB.py" "${OPTIONS[@]}"
