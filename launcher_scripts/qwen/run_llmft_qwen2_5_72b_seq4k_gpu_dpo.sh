#!/usr/bin/env bash
# Qwen 2.5 72B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen2_5_72b_seq4k_gpu_dpo fine_tuning "$@"
