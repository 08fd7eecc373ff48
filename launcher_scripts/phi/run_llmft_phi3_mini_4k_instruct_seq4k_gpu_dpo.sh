#!/usr/bin/env bash
# Phi 3 Mini 4K Instruct Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/phi/llmft_phi3_mini_4k_instruct_seq4k_gpu_dpo fine_tuning "$@"
