#!/usr/bin/env bash
# GLM 4 9B Chat Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/glm/llmft_glm4_9b_chat_seq4k_gpu_dpo fine_tuning "$@"
