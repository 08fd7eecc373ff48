#!/usr/bin/env bash
# SmolLM3 3B Direct Preference Optimization on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/smollm/llmft_smollm3_3b_seq4k_gpu_dpo fine_tuning "$@"
