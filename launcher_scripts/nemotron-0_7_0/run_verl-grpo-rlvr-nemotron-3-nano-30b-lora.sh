#!/usr/bin/env bash
# Nemotron 3 Nano 30B GRPO RLVR Fine-Tuning with Megatron LoRA; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nemotron-0_7_0/verl-grpo-rlvr-nemotron-3-nano-30b-lora verl_grpo "$@"
