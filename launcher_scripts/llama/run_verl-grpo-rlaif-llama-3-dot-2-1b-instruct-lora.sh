#!/usr/bin/env bash
# Llama 3.2 1B GRPO RLAIF Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/verl-grpo-rlaif-llama-3-dot-2-1b-instruct-lora verl_grpo "$@"
