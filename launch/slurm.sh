#!/usr/bin/env bash
# A Slurm cluster, one process per node for all GPUs of the node:
#
#   NODES=2 GPUS=8 launch/slurm.sh [--dry-run] sft --config=configs/sft_tiny.py --workdir=runs/sft_tiny
#   NODES=2 SERVER_NODES=2 GPUS=8 launch/slurm.sh train --config=configs/c_grpo_4b.py --config.model.policy=DIR ...
#
# Submits one batch job from this clone, which must lie, like the run folder, on storage that all nodes share.
# The job may be preempted and requeued: it goes on from its last checkpoint.
#
# NODES, GPUS      nodes, and GPUs on each of them (0 = train on CPUs)
# SERVER_NODES     more nodes, for the SGLang servers of train (default 0; see launch/slurm_servers.sh)
# TIME             limit of the job, as sbatch takes it (default 24:00:00)
# SBATCH_OPTIONS   more options for sbatch, for example "--partition=gpu --account=lab"
# PYTHON           interpreter with the dependencies (default .venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/common.sh

PYTHON="${PYTHON:-.venv/bin/python}"

read_arguments "$@"
need_command sbatch "run this on a login node of the cluster"
need_command srun
need_variable NODES "how many nodes"
need_variable GPUS "how many GPUs each node has; 0 trains on CPUs"
command -v "$PYTHON" >/dev/null || missing "the interpreter $PYTHON (make venv, or set PYTHON)"
SERVER_NODES="${SERVER_NODES:-0}"
if ((SERVER_NODES > 0)); then
    [[ "$JOB" == sft ]] && missing "train as the job: only it needs SERVER_NODES"
    need_command scontrol
    # shellcheck disable=SC2153  # GPUS comes from the environment
    ((${GPUS:-1} > 0)) || missing "GPUs for the servers: GPUS is 0"
else
    refuse_several "${NODES:-1}"
fi
end_of_preflight

# -u: lines appear in the log as they are printed.  All CPUs of a node serve its one process.
step="$(quoted srun --kill-on-bad-exit=1 --cpu-bind=none "$PYTHON" -u "launch/$JOB.py" --distributed "${OPTIONS[@]}")"
if ((SERVER_NODES > 0)); then
    step="$(quoted env "PYTHON=$PYTHON" "GPUS=$GPUS" "SERVER_NODES=$SERVER_NODES" \
        launch/slurm_servers.sh "$JOB" "${OPTIONS[@]}")"
fi
gpus=()
if ((GPUS > 0)); then
    gpus=("--gpus-per-node=$GPUS")
    step="export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}; $step"
fi
read -ra more <<<"${SBATCH_OPTIONS:-}"

[[ -n "$DRY_RUN" ]] || mkdir -p runs/slurm
run sbatch --job-name="carr_jax-$JOB" --nodes="$((NODES + SERVER_NODES))" --ntasks-per-node=1 "${gpus[@]}" \
    --exclusive --mem=0 --time="${TIME:-24:00:00}" --requeue --open-mode=append \
    --output=runs/slurm/%j.log "${more[@]}" --wrap="$step"
[[ -n "$DRY_RUN" ]] || echo "the log is runs/slurm/JOB.log; the same command resumes the run"
