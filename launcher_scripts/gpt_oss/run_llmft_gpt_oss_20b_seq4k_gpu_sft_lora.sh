#!/usr/bin/env bash
# GPT OSS 20B Supervised Fine-Tuning with LoRA on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_sft_lora without_weights "$@"
