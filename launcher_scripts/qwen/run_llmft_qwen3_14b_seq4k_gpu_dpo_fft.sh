#!/usr/bin/env bash
# Qwen3 14B Direct Preference Optimization Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen3_14b_seq4k_gpu_dpo_fft fine_tuning "$@"
