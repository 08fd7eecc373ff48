#!/usr/bin/env bash
# Llama 4 Scout 17B 16E Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/llmft_llama4_scout_17b_16e_instruct_seq4k_gpu_dpo fine_tuning "$@"
