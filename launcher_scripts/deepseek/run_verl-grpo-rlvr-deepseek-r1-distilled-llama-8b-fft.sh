#!/usr/bin/env bash
# DeepSeek R1 Distill Llama 8B GRPO RLVR Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/deepseek/verl-grpo-rlvr-deepseek-r1-distilled-llama-8b-fft verl_grpo "$@"
