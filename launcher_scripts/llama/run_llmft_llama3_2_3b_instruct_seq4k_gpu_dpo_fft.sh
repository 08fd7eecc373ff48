#!/usr/bin/env bash
# Llama 3.2 3B Instruct Direct Preference Optimization Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/llmft_llama3_2_3b_instruct_seq4k_gpu_dpo_fft fine_tuning "$@"
