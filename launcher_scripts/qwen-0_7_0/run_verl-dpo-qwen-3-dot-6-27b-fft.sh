#!/usr/bin/env bash
# Qwen 3.6 27B DPO Full Fine-Tuning; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/verl-dpo-qwen-3-dot-6-27b-fft verl_offline "$@"
