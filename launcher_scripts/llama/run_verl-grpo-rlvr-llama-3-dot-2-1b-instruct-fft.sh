#!/usr/bin/env bash
# Llama 3.2 1B GRPO RLVR Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/verl-grpo-rlvr-llama-3-dot-2-1b-instruct-fft verl_grpo "$@"
