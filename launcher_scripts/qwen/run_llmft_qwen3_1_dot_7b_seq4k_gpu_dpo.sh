#!/usr/bin/env bash
# Qwen 3 1.7B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen3_1_dot_7b_seq4k_gpu_dpo fine_tuning "$@"
