#!/usr/bin/env bash
# Gemma 4 E4B IT DPO LoRA Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gemma4-0_7_0/verl-dpo-gemma-4-e4b-it-lora verl_offline "$@"
