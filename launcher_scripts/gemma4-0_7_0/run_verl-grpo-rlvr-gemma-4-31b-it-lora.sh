#!/usr/bin/env bash
# Gemma 4 31B IT GRPO RLVR Fine-Tuning with LoRA (Text); ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gemma4-0_7_0/verl-grpo-rlvr-gemma-4-31b-it-lora verl_grpo "$@"
