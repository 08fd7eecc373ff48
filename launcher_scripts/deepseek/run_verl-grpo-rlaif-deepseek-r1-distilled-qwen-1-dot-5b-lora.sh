#!/usr/bin/env bash
# Deepseek R1 Distilled Qwen 1.5B GRPO RLAIF Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/deepseek/verl-grpo-rlaif-deepseek-r1-distilled-qwen-1-dot-5b-lora verl_grpo "$@"
