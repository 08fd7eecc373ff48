#!/usr/bin/env bash
# Llama 3.1 8B GRPO RLAIF Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/verl-grpo-rlaif-llama-3-dot-1-8b-instruct-lora verl_grpo "$@"
