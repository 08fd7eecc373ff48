#!/usr/bin/env bash
# Phi 3 Mini 4K Instruct Supervised Fine-Tuning with LoRA on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/phi/llmft_phi3_mini_4k_instruct_seq4k_gpu_sft_lora fine_tuning "$@"
