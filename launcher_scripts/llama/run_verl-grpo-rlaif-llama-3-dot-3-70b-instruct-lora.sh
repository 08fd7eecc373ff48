#!/usr/bin/env bash
# Llama 3.3 70B Instruct GRPO RLAIF Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/verl-grpo-rlaif-llama-3-dot-3-70b-instruct-lora verl_grpo "$@"
