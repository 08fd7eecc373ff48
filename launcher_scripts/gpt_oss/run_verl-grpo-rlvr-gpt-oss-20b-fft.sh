#!/usr/bin/env bash
# GPT OSS 20B GRPO RLVR Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/verl-grpo-rlvr-gpt-oss-20b-fft verl_grpo "$@"
