#!/usr/bin/env bash
# DeepSeek R1 Distill Qwen 32B Supervised Fine-Tuning with LoRA on GPU, 4K sequence length
#
# Needs TRAIN_DATA_NAME, TRAIN_DIR, VAL_DATA_NAME, VAL_DIR and EXP_DIR, as the container sees them.
# May set MODEL_NAME_OR_PATH, MODEL_SAVE_NAME, CONTAINER, CONTAINER_MOUNT and SAGEMAKER_TRAINING_LAUNCHER_DIR.
# Further arguments are overrides: cluster=k8s ++recipes.elastic_policy.is_elastic=true dry_run=true
set -euo pipefail

missing=()
for name in TRAIN_DATA_NAME TRAIN_DIR VAL_DATA_NAME VAL_DIR EXP_DIR; do
  [ -n "${!name:-}" ] || missing+=("$name")
done
if [ "${#missing[@]}" -gt 0 ]; then
  echo "unset: ${missing[*]}; set each in the environment, e.g. TRAIN_DIR=/fsx/data/train $0" >&2
  exit 2
fi

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
launcher_dir=${SAGEMAKER_TRAINING_LAUNCHER_DIR:-$here}
python=$launcher_dir/.venv/bin/python
[ -x "$python" ] || python=python3
python=${PYTHON:-$python}

quote() { printf "'%s'" "${1//\'/\\\'}"; } # a text in Hydra's override grammar

training=recipes.training_config
overrides=(
  "recipes=fine-tuning/deepseek/llmft_deepseek_r1_distilled_qwen_32b_seq4k_gpu_sft_lora"
  "base_results_dir=$(quote "$launcher_dir/results")"
  "$training.training_args.training_dir=$(quote "$EXP_DIR")"
  "$training.datasets.train_data.name=$(quote "$TRAIN_DATA_NAME")"
  "$training.datasets.train_data.file_path=$(quote "$TRAIN_DIR")"
  "$training.datasets.val_data.name=$(quote "$VAL_DATA_NAME")"
  "$training.datasets.val_data.file_path=$(quote "$VAL_DIR")"
)
optional() { [ -z "$2" ] || overrides+=("$1=$(quote "$2")"); }
optional "$training.model_config.model_name_or_path" "${MODEL_NAME_OR_PATH:-}"
optional "$training.model_config.model_save_name" "${MODEL_SAVE_NAME:-}"
optional container "${CONTAINER:-}"
optional +cluster.container_mounts.0 "${CONTAINER_MOUNT:-}"

exec "$python" "$launcher_dir/main.py" "${overrides[@]}" "$@"
