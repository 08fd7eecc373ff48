#!/usr/bin/env bash
# Mistral 7B v0.1 Supervised Fine-Tuning Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/mistral/llmft_mistral_7b_v0_1_seq4k_gpu_sft_fft fine_tuning "$@"
