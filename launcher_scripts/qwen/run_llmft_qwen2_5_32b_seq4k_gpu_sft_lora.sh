#!/usr/bin/env bash
# Qwen 2.5 32B Supervised Fine-Tuning with LoRA on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen/llmft_qwen2_5_32b_seq4k_gpu_sft_lora fine_tuning "$@"
