#!/usr/bin/env bash
# Qwen 2.5 32B SFT Full Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-sft-qwen-2-5-32b-instruct-fft verl_offline "$@"
