#!/usr/bin/env bash
# GPT OSS 20B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_dpo without_weights "$@"
