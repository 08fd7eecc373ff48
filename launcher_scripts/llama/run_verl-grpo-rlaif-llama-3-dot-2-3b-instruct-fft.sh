#!/usr/bin/env bash
# Llama 3.2 3B GRPO RLAIF Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/verl-grpo-rlaif-llama-3-dot-2-3b-instruct-fft verl_grpo "$@"
