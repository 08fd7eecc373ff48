#!/usr/bin/env bash
# A script of your own
#
# Needs ENTRY_SCRIPT, the path of a Python script, or ENTRY_MODULE, as for python -m.
# May set NUM_NODES, MPI=true (one start per rank, by mpirun), NPROC_PER_NODE (processes per node),
# EXP_DIR (for checkpoints), CONTAINER, CONTAINER_MOUNT and SAGEMAKER_TRAINING_LAUNCHER_DIR.
# Further arguments are overrides: cluster=slurm instance_type=ml.p5.48xlarge training_cfg.script_args='[{--epochs: 3}]'
set -euo pipefail

if [ -z "${ENTRY_SCRIPT:-}${ENTRY_MODULE:-}" ]; then
  echo "unset: ENTRY_SCRIPT or ENTRY_MODULE; set one in the environment, e.g. ENTRY_SCRIPT=train.py $0" >&2
  exit 2
fi

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
launcher_dir=${SAGEMAKER_TRAINING_LAUNCHER_DIR:-$here}
python=$launcher_dir/.venv/bin/python
[ -x "$python" ] || python=python3
python=${PYTHON:-$python}

quote() { printf "'%s'" "${1//\'/\\\'}"; } # a text in Hydra's override grammar

overrides=(
  "recipes=training/custom/script"
  "base_results_dir=$(quote "$launcher_dir/results")"
)
optional() { [ -z "$2" ] || overrides+=("$1=$(quote "$2")"); }
optional training_cfg.entry_script "${ENTRY_SCRIPT:-}"
optional training_cfg.entry_module "${ENTRY_MODULE:-}"
optional recipes.training_config.training_args.training_dir "${EXP_DIR:-}"
optional container "${CONTAINER:-}"
optional +cluster.container_mounts.0 "${CONTAINER_MOUNT:-}"
number() { [ -z "$2" ] || overrides+=("$1=$2"); }
number training_cfg.run.ntasks_per_node "${NPROC_PER_NODE:-}"
number training_cfg.run.nodes "${NUM_NODES:-}"
number recipes.distribution.mpi.enabled "${MPI:-}"

exec "$python" "$launcher_dir/main.py" "${overrides[@]}" "$@"
