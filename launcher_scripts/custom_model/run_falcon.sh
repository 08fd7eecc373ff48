#!/usr/bin/env bash
# Falcon 7B pre-training with the training adapter for NeMo; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/custom_model/falcon pretraining "$@"
