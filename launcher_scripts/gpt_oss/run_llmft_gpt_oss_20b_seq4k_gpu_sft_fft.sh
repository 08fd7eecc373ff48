#!/usr/bin/env bash
# GPT-OSS 20B Supervised Fine-Tuning Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_sft_fft fine_tuning "$@"
