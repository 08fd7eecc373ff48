#!/usr/bin/env bash
# Nemo3 Super 120B SFT LoRA Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nemotron-0_7_0/verl-sft-nemotron-3-super-120b-lora verl_offline "$@"
