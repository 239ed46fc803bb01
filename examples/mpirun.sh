#!/usr/bin/env bash
# A training started by mpirun of Open MPI; hrm_train itself does not use MPI:
#
#   RANKS=2 examples/mpirun.sh --config configs/puzzle/hrm_sudoku17.json
#   RANKS=16 HOSTS=node1:8,node2:8 examples/mpirun.sh --config FILE run.dir=/shared/runs
#
# SIGTERM to this script saves and stops; then, or when a rank was lost, the same command goes on. The exit code is that
# of hrm_train: 75 stopped and saved, 7 another rank is gone. SIGTERM to mpirun itself does not save: it kills the ranks a
# second later.
set -euo pipefail

readonly HRM_TRAIN=${HRM_TRAIN:-hrm_train} # the program, where it is not in the PATH
ranks=${RANKS:-1}
if (($# == 0)); then
  echo "usage: $0 --config FILE [key=value ...]" >&2
  exit 2
fi
if ! command -v mpirun >/dev/null; then
  echo "error: mpirun is not in the PATH; install Open MPI (openmpi-bin), or use srun or torchrun" >&2
  exit 3
fi

arguments=(-np "$ranks" --bind-to none)
if [[ -n ${HOSTS:-} ]]; then
  # Over several nodes the ranks must be told where to meet: on the first one.
  first=${HOSTS%%,*}
  arguments+=(--host "$HOSTS" -x "MASTER_ADDR=${first%%:*}" -x "MASTER_PORT=${PORT:-29500}")
fi
# In a session of its own: Ctrl-C in a terminal reaches this script alone.
setsid mpirun "${arguments[@]}" "$HRM_TRAIN" train "$@" &
mpirun=$!

# One rank that is asked to stop stops all. Not every child of mpirun is one: connections to other nodes are, too.
signalled=1
# shellcheck disable=SC2317 # called by the trap
stop() {
  local pid sent=0
  signalled=1
  for pid in $(cat /proc/"$mpirun"/task/*/children 2>/dev/null || true); do
    if tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF -- "$HRM_TRAIN" && kill -TERM "$pid" 2>/dev/null; then
      sent=1
    fi
  done
  # No rank here: nothing to save yet, or all ranks are on other nodes.
  if ((sent == 0)); then kill -TERM "$mpirun" 2>/dev/null || true; fi
}
trap stop TERM INT
code=0
while ((signalled)); do # a signal ends `wait`, not mpirun
  signalled=0
  code=0
  wait "$mpirun" || code=$?
done
exit "$code"
