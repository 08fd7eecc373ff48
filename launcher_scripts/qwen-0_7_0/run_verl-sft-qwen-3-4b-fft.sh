#!/usr/bin/env bash
# Qwen 3 4B SFT Full Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-sft-qwen-3-4b-fft verl_offline "$@"
