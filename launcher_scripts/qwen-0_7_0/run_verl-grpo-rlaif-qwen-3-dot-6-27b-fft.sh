#!/usr/bin/env bash
# Qwen 3.6 27B GRPO RLAIF Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-grpo-rlaif-qwen-3-dot-6-27b-fft verl_grpo "$@"
