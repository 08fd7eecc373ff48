#!/usr/bin/env bash
# DeepSeek R1 Distill Qwen 7B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/deepseek/llmft_deepseek_r1_distilled_qwen_7b_seq4k_gpu_dpo fine_tuning "$@"
