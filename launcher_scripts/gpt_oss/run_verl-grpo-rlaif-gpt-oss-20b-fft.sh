#!/usr/bin/env bash
# GPT OSS 20B GRPO RLAIF Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/verl-grpo-rlaif-gpt-oss-20b-fft verl_grpo "$@"
