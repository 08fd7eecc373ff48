#!/usr/bin/env bash
# GLM 4 9B Chat Supervised Fine-Tuning with LoRA on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/glm/llmft_glm4_9b_chat_seq4k_gpu_sft_lora fine_tuning "$@"
