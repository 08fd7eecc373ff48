#!/usr/bin/env bash
# Jais 2 8B Chat Direct Preference Optimization Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/jais/llmft_jais2_8b_chat_seq4k_gpu_dpo_fft fine_tuning "$@"
