#!/usr/bin/env bash
# A TPU pod of Google Cloud, from the request to the end of the run:
#
#   TPU_NAME=carr ZONE=us-east5-b ACCELERATOR_TYPE=v6e-16 SHARED=10.0.0.2:/share \
#       launch/tpu_pod.sh [--dry-run] sft --config=configs/sft_tiny.py --workdir=/mnt/shared/runs/sft_tiny
#   TPU_NAME=carr ZONE=us-east5-b launch/tpu_pod.sh [--dry-run] delete
#
# Requests the pod as a queued resource and waits for it (or takes the one of that name), copies the committed code
# to all hosts, installs it, mounts the shared folder at /mnt/shared and starts the same command on every host.
# When the run has ended well the pod is deleted; after a failure it stays, and costs money, until `delete`.
# A preempted run goes on when the same command is given again.
#
# TPU_NAME, ZONE    name of the request and of the pod; zone
# ACCELERATOR_TYPE  for example v6e-16 (16 chips) or v5p-32 (16 chips: v5p counts cores)
# SHARED            NFS share (Filestore) that the hosts can mount, ADDRESS:/SHARE; keeps run folder and data
# TPU_OPTIONS       more options for the request, for example "--spot" or "--network=... --subnetwork=..."
# RUNTIME_VERSION   software of the hosts; the default depends on ACCELERATOR_TYPE
# LIBTPU_INIT_ARGS  flags of the TPU compiler; the default is below
# KEEP=1            does not delete the pod at the end
# POLL_S            seconds between looks at the queue (default 30)
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/common.sh

runtime_version() {
    case "$1" in
        v6e-*) echo v2-alpha-tpuv6e ;;
        v5p-*) echo v2-alpha-tpuv5 ;;
        v5litepod-*) echo v2-alpha-tpuv5-lite ;;
        v4-*) echo tpu-ubuntu2204-base ;;
    esac
}

hosts() {
    case "$1" in
        v6e-[148] | v5litepod-[148] | v5p-8 | v4-8) echo 1 ;;
        *) echo several ;;
    esac
}

# Gathers overlap with matrix products: the flags that MaxText names, on by default in most versions, made sure.
# v6e has 128 MiB of vector memory, of which the compiler by default uses little.
compiler_flags() {
    local flags="--xla_tpu_enable_async_collective_fusion=true"
    flags+=" --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
    flags+=" --xla_tpu_enable_async_collective_fusion_multiple_steps=true"
    flags+=" --xla_tpu_overlap_compute_collective_tc=true --xla_enable_async_all_gather=true"
    [[ "$1" == v6e-* ]] && flags+=" --xla_tpu_scoped_vmem_limit_kib=98304"
    echo "$flags"
}

queue() { gcloud compute tpus queued-resources "$1" "$TPU_NAME" --zone="$ZONE" "${@:2}"; }

state() { queue describe --format='value(state.state)' 2>/dev/null || true; }

on_all() { run gcloud compute tpus tpu-vm ssh "$TPU_NAME" --zone="$ZONE" --worker=all --command="$1"; }

delete_pod() { run gcloud compute tpus queued-resources delete "$TPU_NAME" --zone="$ZONE" --force --quiet; }

check_delete() {
    [[ "${1:-}" == --dry-run ]] && DRY_RUN=yes && shift
    [[ "${1:-}" == delete ]]
}

preflight() {
    need_command gcloud "the Google Cloud CLI"
    need_variable TPU_NAME "a name for the pod"
    need_variable ZONE "the zone, for example us-east5-b"
    if command -v gcloud >/dev/null; then
        [[ -n "$(gcloud config get-value project 2>/dev/null)" ]] ||
            missing "a project (gcloud config set project PROJECT)"
        [[ -n "$(gcloud auth list --filter=status:ACTIVE --format='value(account)' 2>/dev/null)" ]] ||
            missing "a login (gcloud auth login)"
    fi
}

preflight_run() {
    need_command git
    need_variable ACCELERATOR_TYPE "the pod, for example v6e-16"
    need_variable SHARED "an NFS share for run folder and data, ADDRESS:/SHARE"
    if [[ -n "${ACCELERATOR_TYPE:-}" && -z "$RUNTIME_VERSION" ]]; then
        missing "the environment variable RUNTIME_VERSION: none is known for $ACCELERATOR_TYPE"
    fi
    [[ "$(option workdir)" == /mnt/shared/* ]] || missing "a run folder that all hosts share: --workdir=/mnt/shared/..."
    refuse_several "$(hosts "${ACCELERATOR_TYPE:-}")"
}

wait_for_pod() {
    local now
    while true; do
        now="$(state)"
        case "$now" in
            ACTIVE) return ;;
            FAILED | SUSPENDED | SUSPENDING | DELETING)
                echo "tpu_pod.sh: the request $TPU_NAME is $now; delete it (launch/tpu_pod.sh delete) and start again" >&2
                exit 1
                ;;
        esac
        echo "the request is ${now:-unknown}"
        sleep "${POLL_S:-30}"
    done
}

create_pod() {
    local more
    read -ra more <<<"${TPU_OPTIONS:-}"
    if [[ -n "$DRY_RUN" || -z "$(state)" ]]; then
        run gcloud compute tpus queued-resources create "$TPU_NAME" --zone="$ZONE" --node-id="$TPU_NAME" \
            --accelerator-type="$ACCELERATOR_TYPE" --runtime-version="$RUNTIME_VERSION" "${more[@]}"
    fi
    [[ -n "$DRY_RUN" ]] || wait_for_pod
}

copy_code() {
    if [[ -n "$(git status --porcelain)" ]]; then
        echo "note: changes that are not committed are not copied" >&2
    fi
    local folder
    folder="$(mktemp -d)"
    run git archive --format=tar.gz --output="$folder/carr_jax.tar.gz" HEAD
    run gcloud compute tpus tpu-vm scp "$folder/carr_jax.tar.gz" "$TPU_NAME:" --zone="$ZONE" --worker=all
    rm -rf "$folder"
}

# The hosts bring Python 3.10, so uv fetches another.
# shellcheck disable=SC2016  # expanded on the hosts
install='set -e; mkdir -p carr_jax; tar -xzf carr_jax.tar.gz -C carr_jax; cd carr_jax
python3 -m pip install --quiet --user uv; export PATH="$HOME/.local/bin:$PATH"
test -x .venv/bin/python || uv venv --quiet --python 3.12 .venv
uv pip install --quiet --python .venv/bin/python -c constraints.txt -e ".[tpu]"'

mount_shared='set -e; command -v mount.nfs >/dev/null || sudo apt-get install --yes --quiet nfs-common
sudo mkdir -p /mnt/shared; mountpoint -q /mnt/shared || sudo mount -t nfs'

if check_delete "$@"; then
    preflight
    end_of_preflight
    delete_pod
    exit
fi
RUNTIME_VERSION="${RUNTIME_VERSION:-$(runtime_version "${ACCELERATOR_TYPE:-}")}"
read_arguments "$@"
preflight
preflight_run
end_of_preflight

create_pod
copy_code
on_all "$install"
on_all "$mount_shared $(quoted "$SHARED") /mnt/shared"
flags="${LIBTPU_INIT_ARGS:-$(compiler_flags "$ACCELERATOR_TYPE")}"
on_all "cd carr_jax && $(quoted env "LIBTPU_INIT_ARGS=$flags" .venv/bin/python -u "launch/$JOB.py" --distributed \
    "${OPTIONS[@]}")" || {
    echo "tpu_pod.sh: the run failed; the pod $TPU_NAME still costs money: launch/tpu_pod.sh delete" >&2
    exit 1
}
[[ -n "${KEEP:-}" ]] || delete_pod
