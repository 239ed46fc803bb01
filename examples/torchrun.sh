#!/usr/bin/env bash
# A training started by torchrun (of a Python with torch), on one node or several; torchrun starts all ranks anew when
# one is lost, and they go on from the last checkpoint:
#
#   examples/torchrun.sh --config configs/puzzle/hrm_sudoku17.json
#   NODES=2 NODE=0 HEAD=node1 examples/torchrun.sh --config FILE run.dir=/shared/runs     on the first node
#   NODES=2 NODE=1 HEAD=node1 examples/torchrun.sh --config FILE run.dir=/shared/runs     on the second one
#
# RANKS (default: one for each GPU) is the number of ranks on this node. SIGTERM to a rank saves, and torchrun, to which
# every code but 0 is a failure, starts all again. SIGTERM to torchrun itself is passed on, so that the ranks save, and ends
# it with code 1; start the same command again, and the training goes on.
set -euo pipefail

readonly HRM_TRAIN=${HRM_TRAIN:-hrm_train} # the program, where it is not in the PATH
nodes=${NODES:-1}
if (($# == 0)); then
  echo "usage: $0 --config FILE [key=value ...]" >&2
  exit 2
fi
if ((nodes > 1)) && [[ -z ${NODE:-} || -z ${HEAD:-} ]]; then
  echo "error: with NODES=$nodes, NODE must be the number of this one, from 0, and HEAD the name of the first one" >&2
  exit 2
fi
if ! command -v torchrun >/dev/null; then
  echo "error: torchrun is not in the PATH; activate a Python environment with torch 2 (or use srun or mpirun)" >&2
  exit 3
fi
ranks=${RANKS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)}
if ((ranks == 0)); then ranks=1; fi

place=(--standalone)
if ((nodes > 1)); then
  # The static meeting: torchrun then knows from the start which node is the first.
  place=(--nnodes "$nodes" --node-rank "$NODE" --master-addr "$HEAD" --master-port "${PORT:-29500}")
fi
exec torchrun --no-python "${place[@]}" --nproc-per-node "$ranks" --max-restarts "${MAX_RESTARTS:-3}" \
  "$HRM_TRAIN" train "$@"
