#!/usr/bin/env bash
# Qwen 3 1.7B SFT Full Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-sft-qwen-3-1-dot-7b-fft verl_offline "$@"
