#!/usr/bin/env bash
# Ministral 3 8B Base Supervised Fine-Tuning with LoRA on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/mistral/llmft_ministral3_8b_base_seq4k_gpu_sft_lora fine_tuning "$@"
