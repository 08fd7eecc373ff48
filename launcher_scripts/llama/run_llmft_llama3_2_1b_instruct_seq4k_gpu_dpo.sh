#!/usr/bin/env bash
# Llama 3.2 1B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_dpo fine_tuning "$@"
