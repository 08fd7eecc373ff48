#!/usr/bin/env bash
# Ministral 3 8B Base Supervised Fine-Tuning Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/mistral/llmft_ministral3_8b_base_seq4k_gpu_sft_fft fine_tuning "$@"
