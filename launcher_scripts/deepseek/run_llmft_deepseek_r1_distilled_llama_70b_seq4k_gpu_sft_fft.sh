#!/usr/bin/env bash
# DeepSeek R1 Distill Llama 70B Supervised Fine-Tuning Full Fine-Tuning on GPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/deepseek/llmft_deepseek_r1_distilled_llama_70b_seq4k_gpu_sft_fft fine_tuning "$@"
