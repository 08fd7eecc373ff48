#!/usr/bin/env bash
# MTRL Evaluation; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" evaluation/mtrl/mtrl_eval mtrl_evaluation "$@"
