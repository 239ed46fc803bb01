# shellcheck shell=bash disable=SC2034
# Sourced by the scripts: where the project is, how they speak, how they time a step.
set -euo pipefail

HRM_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
HRM_VENV=$HRM_ROOT/.venv
HRM_BUILD=$HRM_ROOT/build
HRM_STARTED=${EPOCHREALTIME/,/.}

say() { printf '== %s\n' "$*"; }

# die CODE SENTENCE: the exit codes are those of hrm_train (2 usage, 3 environment).
die() {
  printf 'error: %s\n' "$2" >&2
  exit "$1"
}

# Seconds since a value of EPOCHREALTIME, with one digit.
seconds_since() {
  awk -v a="$1" -v b="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.1f", b - a }'
}

# step TEXT COMMAND...: says what happens, does it, says how long it took.
step() {
  local text=$1 started=${EPOCHREALTIME/,/.}
  shift
  say "$text ..."
  "$@"
  say "$text: $(seconds_since "$started") s"
}

say_total() { say "$1: $(seconds_since "$HRM_STARTED") s in all"; }

free_gb() { df -Pk "$1" | awk 'NR == 2 { printf "%d", $4 / 1048576 }'; }
