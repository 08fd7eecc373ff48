#!/usr/bin/env bash
# Qwen 3 8B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen3_8b_seq4k_gpu_dpo fine_tuning "$@"
