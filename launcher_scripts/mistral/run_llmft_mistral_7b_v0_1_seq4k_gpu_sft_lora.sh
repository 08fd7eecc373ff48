#!/usr/bin/env bash
# Mistral 7B v0.1 Supervised Fine-Tuning with LoRA on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/mistral/llmft_mistral_7b_v0_1_seq4k_gpu_sft_lora fine_tuning "$@"
