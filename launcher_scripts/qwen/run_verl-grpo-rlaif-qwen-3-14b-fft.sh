#!/usr/bin/env bash
# Qwen 3 14B GRPO RLAIF Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/verl-grpo-rlaif-qwen-3-14b-fft verl_grpo "$@"
