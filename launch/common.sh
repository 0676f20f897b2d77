# shellcheck shell=bash
# What the scripts of the places to run have in common; sourced by them, not run.

if ((BASH_VERSINFO[0] < 5)); then
    echo "$(basename "$0"): needs bash 5, this is $BASH_VERSION" >&2
    exit 2
fi

MISSING=()
DRY_RUN=

missing() { MISSING+=("$1"); }

need_command() { command -v "$1" >/dev/null || missing "the command $1${2:+ ($2)}"; }

# need_variable NAME WHAT: an environment variable that must have a value
need_variable() { [[ -n "${!1:-}" ]] || missing "the environment variable $1: $2"; }

# The program and its options: JOB is train or sft, OPTIONS go to launch/$JOB.py as they are.
read_arguments() {
    if [[ "${1:-}" == --dry-run ]]; then
        DRY_RUN=yes
        shift
    fi
    JOB="${1:-}"
    OPTIONS=("${@:2}")
    if [[ "$JOB" != train && "$JOB" != sft ]]; then
        missing "the job as the first argument: train or sft"
    fi
    local config
    config="$(option config)"
    if [[ -z "$config" ]]; then
        missing "the experiment: --config=configs/FILE.py"
    elif [[ ! -f "$config" ]]; then
        missing "the file $config"
    fi
}

# option NAME: the value of --NAME=VALUE among the job's options, empty without one
option() {
    local each value=
    for each in "${OPTIONS[@]}"; do
        [[ "$each" == "--$1="* ]] && value="${each#*=}"
    done
    echo "$value"
}

# refuse_several HOSTS: the embedded engine runs in one process
refuse_several() {
    if [[ "$JOB" == train && "$1" != 1 && -z "$(option config.rollout.servers)" ]]; then
        missing "servers for train on several hosts: --config.rollout.servers=... (launch/serve_sglang.py starts one)"
    fi
}

# Says everything that is missing at once, and stops.
end_of_preflight() {
    ((${#MISSING[@]} == 0)) && return
    echo "$(basename "$0"): cannot start, missing:" >&2
    printf '  %s\n' "${MISSING[@]}" >&2
    exit 2
}

# The command as it could be typed.
quoted() {
    local words=()
    local word
    for word in "$@"; do
        if [[ "$word" =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then
            words+=("$word")
        else
            words+=("${word@Q}")
        fi
    done
    echo "${words[*]}"
}

# Executes a command, or only shows it with --dry-run.
run() {
    if [[ -n "$DRY_RUN" ]]; then
        quoted "$@"
    else
        "$@"
    fi
}
