#!/usr/bin/env bash
# SmolLM3 3B Direct Preference Optimization Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/smollm/llmft_smollm3_3b_seq4k_gpu_dpo_fft fine_tuning "$@"
