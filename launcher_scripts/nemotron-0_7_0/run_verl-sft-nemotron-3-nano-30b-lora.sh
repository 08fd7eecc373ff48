#!/usr/bin/env bash
# Nemotron 3 Nano 30B SFT LoRA Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nemotron-0_7_0/verl-sft-nemotron-3-nano-30b-lora verl_offline "$@"
