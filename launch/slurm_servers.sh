#!/usr/bin/env bash
# Inside a job of launch/slurm.sh with SERVER_NODES: SGLang servers on the first nodes, the training on the others.
#
#   launch/slurm_servers.sh train --config=... (the job's options)
#
# Each server has config.serve.tensor GPUs of its node.  The training starts when all have computed something, and the
# servers end with it.  If one ends before, so does the job.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/common.sh

read_arguments "$@"
readarray -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
per_server="$(option config.serve.tensor)"
per_server="${per_server:-1}"
servers=()
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

for host in "${hosts[@]:0:SERVER_NODES}"; do
    for ((gpu = 0; gpu + per_server <= GPUS; gpu += per_server)); do
        port=$((30000 + gpu))
        visible="$(seq --separator=, "$gpu" $((gpu + per_server - 1)))"
        srun --nodes=1 --ntasks=1 --nodelist="$host" --overlap --cpu-bind=none \
            env "CUDA_VISIBLE_DEVICES=$visible" "$PYTHON" -u launch/serve_sglang.py "${OPTIONS[@]}" \
            "--config.serve.host=$host" "--config.serve.port=$port" &
        servers+=("'http://$host:$port'")
    done
done
addresses="($(IFS=,; echo "${servers[*]}"),)"
engine=("--config.rollout.engine=sglang" "--config.rollout.servers=$addresses")

until "$PYTHON" launch/serve_sglang.py "${OPTIONS[@]}" "${engine[@]}" --attach; do
    if (($(jobs -pr | wc -l) < ${#servers[@]})); then
        echo "slurm_servers.sh: a server has ended; its lines are above" >&2
        exit 1
    fi
    sleep "${POLL_S:-10}"
done

rest="$(IFS=,; echo "${hosts[*]:SERVER_NODES}")"
srun --nodes=$((${#hosts[@]} - SERVER_NODES)) --ntasks-per-node=1 --nodelist="$rest" --kill-on-bad-exit=1 --overlap \
    --cpu-bind=none "$PYTHON" -u "launch/$JOB.py" --distributed "${OPTIONS[@]}" "${engine[@]}"
