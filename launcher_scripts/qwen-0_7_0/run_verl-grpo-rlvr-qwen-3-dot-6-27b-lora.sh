#!/usr/bin/env bash
# Qwen 3.6 27B GRPO RLVR Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-grpo-rlvr-qwen-3-dot-6-27b-lora verl_grpo "$@"
