#!/usr/bin/env bash
# Qwen 2.5 32B Instruct GRPO RLAIF Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/verl-grpo-rlaif-qwen-2-dot-5-32b-instruct-lora verl_grpo "$@"
