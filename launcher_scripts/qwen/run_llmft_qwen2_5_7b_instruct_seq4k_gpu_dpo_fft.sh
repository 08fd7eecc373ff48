#!/usr/bin/env bash
# Qwen 2.5 7B Instruct Direct Preference Optimization Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen2_5_7b_instruct_seq4k_gpu_dpo_fft fine_tuning "$@"
