#!/usr/bin/env bash
# Llama 3.1 8B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_dpo fine_tuning "$@"
