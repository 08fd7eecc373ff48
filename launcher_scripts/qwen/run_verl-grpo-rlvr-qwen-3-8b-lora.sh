#!/usr/bin/env bash
# Qwen 3 8B GRPO RLVR Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-lora verl_grpo "$@"
