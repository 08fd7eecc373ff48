#!/usr/bin/env bash
# Launches a recipe with the overrides that variables of the environment stand for. The scripts in the folders beside
# this one call it: launch.sh RECIPE KIND [override...]
#
# KIND names the variables (paths are as the container sees them):
#   fine_tuning      needs TRAIN_DATA_NAME, TRAIN_DIR, VAL_DATA_NAME, VAL_DIR and EXP_DIR;
#                    may have MODEL_NAME_OR_PATH, MODEL_SAVE_NAME, CONTAINER and CONTAINER_MOUNT
#   without_weights  as fine_tuning, but needs MODEL_NAME_OR_PATH
#   script           needs ENTRY_SCRIPT, the path of a Python script, or ENTRY_MODULE, as for python -m; may have NUM_NODES,
#                    NPROC_PER_NODE (processes per node), MPI=true (one start per rank, by mpirun), EXP_DIR (for
#                    checkpoints), CONTAINER and CONTAINER_MOUNT
#   elastic_script   as script, with MIN_NODES and MAX_NODES in place of NUM_NODES and MPI
#   nova             may have DATA_S3_PATH, OUTPUT_S3_PATH, MODEL_WEIGHTS, REWARD_LAMBDA_ARN, CONTAINER and CONTAINER_MOUNT
#   benchmark        may have BASE_MODEL_NAME, MODEL_NAME_OR_PATH, DATA_DIR, RESULTS_DIR, CONTAINER and CONTAINER_MOUNT
#   judge            may have BASE_MODEL_NAME, JUDGE_MODEL_ID, ANSWERS_DIR, BASE_ANSWERS_DIR, RESULTS_DIR, CONTAINER and CONTAINER_MOUNT
#   pretraining      may have TRAIN_DIR, VAL_DIR, EXP_DIR, MODEL_NAME_OR_PATH, CONTAINER and CONTAINER_MOUNT
#   checkpointless   may have TRAIN_DIR, EXP_DIR, LOG_DIR, MODEL_NAME_OR_PATH, CONTAINER and CONTAINER_MOUNT
#   checkpointless_pretraining  may have TRAIN_DIR, EXP_DIR, LOG_DIR, CONTAINER and CONTAINER_MOUNT
#   mtrl             may have MODEL_NAME_OR_PATH, CONTAINER and CONTAINER_MOUNT
#   mtrl_evaluation  may have MODEL_NAME_OR_PATH, BASE_MODEL_NAME, CONTAINER and CONTAINER_MOUNT
#   verl_grpo        may have TRAIN_DATA, VAL_DATA, EXP_DIR, ACTOR_MODEL_PATH, CRITIC_MODEL_PATH, REWARD_MODEL_PATH, CONTAINER and CONTAINER_MOUNT
#   verl_offline     may have TRAIN_DATA, VAL_DATA, EXP_DIR, MODEL_NAME_OR_PATH, CONTAINER and CONTAINER_MOUNT
#   plain            may have CONTAINER and CONTAINER_MOUNT
#   tiny             may have TRAIN_DIR (a text file) and EXP_DIR (for checkpoints)
#
# SAGEMAKER_TRAINING_LAUNCHER_DIR is the launcher's folder, if not the one above this, and PYTHON its Python.
# Further arguments are overrides, for example: cluster=k8s ++recipes.elastic_policy.is_elastic=true dry_run=true
set -euo pipefail

recipe=$1 kind=$2
shift 2
folder=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
family=${recipe%/*}
script=$folder/${family##*/}/run_${recipe##*/}.sh
launcher_dir=${SAGEMAKER_TRAINING_LAUNCHER_DIR:-$folder/..}
launcher_dir=$(cd -- "$launcher_dir" && pwd)
python=$launcher_dir/.venv/bin/python
[ -x "$python" ] || python=python3
python=${PYTHON:-$python}

quote() { printf "'%s'" "${1//\'/\\\'}"; } # a text in Hydra's override grammar
overrides=("recipes=$recipe" "base_results_dir=$(quote "$launcher_dir/results")")
text() { [ -z "${!2:-}" ] || overrides+=("$1=$(quote "${!2}")"); }
plain() { [ -z "${!2:-}" ] || overrides+=("$1=${!2}"); }

needs() {
  local name missing=""
  for name in "$@"; do
    [ -n "${!name:-}" ] || missing+=" $name"
  done
  if [ -n "$missing" ]; then
    echo "unset:$missing; set each in the environment, e.g. TRAIN_DIR=/fsx/data/train $script" >&2
    exit 2
  fi
}

container() {
  text container CONTAINER
  text +cluster.container_mounts.0 CONTAINER_MOUNT
}

training=recipes.training_config
fine_tuning() {
  needs TRAIN_DATA_NAME TRAIN_DIR VAL_DATA_NAME VAL_DIR EXP_DIR "$@"
  text "$training.training_args.training_dir" EXP_DIR
  text "$training.datasets.train_data.name" TRAIN_DATA_NAME
  text "$training.datasets.train_data.file_path" TRAIN_DIR
  text "$training.datasets.val_data.name" VAL_DATA_NAME
  text "$training.datasets.val_data.file_path" VAL_DIR
  text "$training.model_config.model_name_or_path" MODEL_NAME_OR_PATH
  text "$training.model_config.model_save_name" MODEL_SAVE_NAME
  container
}

own_script() {
  if [ -z "${ENTRY_SCRIPT:-}${ENTRY_MODULE:-}" ]; then
    echo "unset: ENTRY_SCRIPT or ENTRY_MODULE; set one in the environment, e.g. ENTRY_SCRIPT=train.py $script" >&2
    exit 2
  fi
  text training_cfg.entry_script ENTRY_SCRIPT
  text training_cfg.entry_module ENTRY_MODULE
  text "$training.training_args.training_dir" EXP_DIR
  container
  plain training_cfg.run.ntasks_per_node NPROC_PER_NODE
}

case $kind in
  fine_tuning) fine_tuning ;;
  without_weights) fine_tuning MODEL_NAME_OR_PATH ;;
  script)
    own_script
    plain training_cfg.run.nodes NUM_NODES
    plain recipes.distribution.mpi.enabled MPI
    ;;
  elastic_script)
    own_script
    plain recipes.elastic_policy.min_nodes MIN_NODES
    plain recipes.elastic_policy.max_nodes MAX_NODES
    ;;
  nova)
    text recipes.run.data_s3_path DATA_S3_PATH
    text recipes.run.output_s3_path OUTPUT_S3_PATH
    text recipes.run.model_name_or_path MODEL_WEIGHTS
    text recipes.run.reward_lambda_arn REWARD_LAMBDA_ARN
    container
    ;;
  benchmark)
    text recipes.run.base_model_name BASE_MODEL_NAME
    text recipes.run.model_name_or_path MODEL_NAME_OR_PATH
    text recipes.run.data_s3_path DATA_DIR
    text recipes.output.eval_results_dir RESULTS_DIR
    container
    ;;
  judge)
    text recipes.run.base_model_name BASE_MODEL_NAME
    text recipes.run.judge_model_id JUDGE_MODEL_ID
    text recipes.run.inference_data_s3_path ANSWERS_DIR
    text recipes.run.base_model_inference_data_s3_path BASE_ANSWERS_DIR
    text recipes.output.eval_results_dir RESULTS_DIR
    container
    ;;
  pretraining)
    text recipes.model.data.train_dir TRAIN_DIR
    text recipes.model.data.val_dir VAL_DIR
    text recipes.exp_manager.exp_dir EXP_DIR
    text recipes.model.hf_model_name_or_path MODEL_NAME_OR_PATH
    container
    ;;
  checkpointless)
    text recipes.dataset.dataset_path TRAIN_DIR
    text recipes.exp_manager.exp_dir EXP_DIR
    text recipes.log_dir LOG_DIR
    text recipes.resume.restore_config.path MODEL_NAME_OR_PATH
    container
    ;;
  checkpointless_pretraining)
    text recipes.dataset.dataset_path TRAIN_DIR
    text recipes.exp_manager.exp_dir EXP_DIR
    text recipes.log_dir LOG_DIR
    container
    ;;
  mtrl)
    text recipes.model.model_name MODEL_NAME_OR_PATH
    container
    ;;
  mtrl_evaluation)
    text recipes.model.model_name MODEL_NAME_OR_PATH
    text recipes.run.base_model_name BASE_MODEL_NAME
    container
    ;;
  verl_grpo)
    text recipes.training_config.data.train_files TRAIN_DATA
    text recipes.training_config.data.val_files VAL_DATA
    text recipes.training_config.trainer.default_local_dir EXP_DIR
    text recipes.training_config.actor_rollout_ref.model.path ACTOR_MODEL_PATH
    text recipes.training_config.critic.model.path CRITIC_MODEL_PATH
    text recipes.training_config.reward_model.model.path REWARD_MODEL_PATH
    container
    ;;
  verl_offline)
    text recipes.training_config.data.train_files TRAIN_DATA
    text recipes.training_config.data.val_files VAL_DATA
    text recipes.training_config.trainer.default_local_dir EXP_DIR
    text recipes.training_config.model.path MODEL_NAME_OR_PATH
    container
    ;;
  plain) container ;;
  tiny)
    text "$training.datasets.train_data.file_path" TRAIN_DIR
    text "$training.training_args.training_dir" EXP_DIR
    ;;
  *)
    echo "unknown kind of variables: $kind; launch.sh names those that there are" >&2
    exit 2
    ;;
esac

exec "$python" "$launcher_dir/main.py" "${overrides[@]}" "$@"
