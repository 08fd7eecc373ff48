#!/usr/bin/env bash
# SmolLM3 3B Supervised Fine-Tuning with LoRA on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/smollm/llmft_smollm3_3b_seq4k_gpu_sft_lora fine_tuning "$@"
