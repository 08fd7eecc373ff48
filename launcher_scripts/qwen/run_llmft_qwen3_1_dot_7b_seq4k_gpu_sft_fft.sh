#!/usr/bin/env bash
# Qwen3 1.7B Supervised Fine-Tuning Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen3_1_dot_7b_seq4k_gpu_sft_fft fine_tuning "$@"
