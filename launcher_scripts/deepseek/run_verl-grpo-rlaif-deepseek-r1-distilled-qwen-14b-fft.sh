#!/usr/bin/env bash
# Deepseek R1 Distilled Qwen 14B GRPO RLAIF Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/deepseek/verl-grpo-rlaif-deepseek-r1-distilled-qwen-14b-fft verl_grpo "$@"
