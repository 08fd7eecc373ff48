#!/usr/bin/env bash
# GPT OSS 120B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/llmft_gpt_oss_120b_seq4k_gpu_dpo without_weights "$@"
