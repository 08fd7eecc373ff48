#!/usr/bin/env bash
# DeepSeek R1 Distill Qwen 1.5B Supervised Fine-Tuning with FFT on GPU, 4K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/deepseek/llmft_deepseek_r1_distilled_qwen_1_dot_5b_seq4k_gpu_sft_fft fine_tuning "$@"
