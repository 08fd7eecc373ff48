#!/usr/bin/env bash
# Llama 3.1 8B Instruct Supervised Fine-Tuning Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_fft fine_tuning "$@"
