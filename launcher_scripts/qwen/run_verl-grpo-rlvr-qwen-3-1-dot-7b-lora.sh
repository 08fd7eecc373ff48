#!/usr/bin/env bash
# Qwen 3 1.7B GRPO RLVR Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/verl-grpo-rlvr-qwen-3-1-dot-7b-lora verl_grpo "$@"
