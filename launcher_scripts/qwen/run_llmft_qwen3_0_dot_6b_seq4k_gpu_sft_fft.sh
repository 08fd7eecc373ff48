#!/usr/bin/env bash
# Qwen3 0.6B Supervised Fine-Tuning Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen3_0_dot_6b_seq4k_gpu_sft_fft fine_tuning "$@"
