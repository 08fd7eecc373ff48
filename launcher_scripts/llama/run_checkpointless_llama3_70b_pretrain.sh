#!/usr/bin/env bash
# HyperPod Checkpointless Training Llama 3 70B Pre-Training on GPU, 2K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/llama/checkpointless_llama3_70b_pretrain checkpointless_pretraining "$@"
