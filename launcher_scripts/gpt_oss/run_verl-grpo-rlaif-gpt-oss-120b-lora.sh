#!/usr/bin/env bash
# GPT OSS 120B GRPO RLAIF Fine-Tuning with LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/verl-grpo-rlaif-gpt-oss-120b-lora verl_grpo "$@"
