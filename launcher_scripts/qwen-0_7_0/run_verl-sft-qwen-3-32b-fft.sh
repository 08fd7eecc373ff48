#!/usr/bin/env bash
# Qwen 3 32B SFT Full Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-sft-qwen-3-32b-fft verl_offline "$@"
