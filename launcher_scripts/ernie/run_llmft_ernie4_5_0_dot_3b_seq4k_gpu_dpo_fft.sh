#!/usr/bin/env bash
# ERNIE 4.5 0.3B Direct Preference Optimization Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/ernie/llmft_ernie4_5_0_dot_3b_seq4k_gpu_dpo_fft fine_tuning "$@"
