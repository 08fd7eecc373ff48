#!/usr/bin/env bash
# Tiny byte-level language model on CPU
#
# Needs nothing. May set TRAIN_DIR (a text file), EXP_DIR (for checkpoints) and SAGEMAKER_TRAINING_LAUNCHER_DIR.
# Further arguments are overrides: recipes.trainer.num_nodes=2 dry_run=true
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
launcher_dir=${SAGEMAKER_TRAINING_LAUNCHER_DIR:-$here}
python=$launcher_dir/.venv/bin/python
[ -x "$python" ] || python=python3
python=${PYTHON:-$python}

quote() { printf "'%s'" "${1//\'/\\\'}"; } # a text in Hydra's override grammar

overrides=(
  "recipes=training/tiny/tiny_lm_cpu"
  "base_results_dir=$(quote "$launcher_dir/results")"
)
optional() { [ -z "$2" ] || overrides+=("$1=$(quote "$2")"); }
optional recipes.training_config.datasets.train_data.file_path "${TRAIN_DIR:-}"
optional recipes.training_config.training_args.training_dir "${EXP_DIR:-}"

exec "$python" "$launcher_dir/main.py" "${overrides[@]}" "$@"
