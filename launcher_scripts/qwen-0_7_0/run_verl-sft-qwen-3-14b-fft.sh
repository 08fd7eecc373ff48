#!/usr/bin/env bash
# Qwen 3 14B SFT Full Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-sft-qwen-3-14b-fft verl_offline "$@"
