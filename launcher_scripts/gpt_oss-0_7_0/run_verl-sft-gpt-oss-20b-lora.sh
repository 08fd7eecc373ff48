#!/usr/bin/env bash
# GPT-OSS 20B SFT LoRA Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss-0_7_0/verl-sft-gpt-oss-20b-lora verl_offline "$@"
