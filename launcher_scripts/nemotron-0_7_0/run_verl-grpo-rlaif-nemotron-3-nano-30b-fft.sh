#!/usr/bin/env bash
# Nemotron 3 Nano 30B GRPO RLAIF Fine-Tuning with Megatron FFT; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nemotron-0_7_0/verl-grpo-rlaif-nemotron-3-nano-30b-fft verl_grpo "$@"
