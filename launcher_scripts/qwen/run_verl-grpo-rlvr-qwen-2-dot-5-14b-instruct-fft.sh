#!/usr/bin/env bash
# Qwen 2.5 14B Instruct GRPO RLVR Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/verl-grpo-rlvr-qwen-2-dot-5-14b-instruct-fft verl_grpo "$@"
