#!/usr/bin/env bash
# Qwen 3.5 27B SFT LoRA Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-sft-qwen-3-dot-5-27b-lora verl_offline "$@"
