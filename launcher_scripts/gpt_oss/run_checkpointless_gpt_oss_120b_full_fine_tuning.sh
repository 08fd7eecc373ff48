#!/usr/bin/env bash
# HyperPod Checkpointless Training GPT OSS 120B Full Fine-tuning on GPU, 2K sequence length; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/checkpointless_gpt_oss_120b_full_fine_tuning checkpointless "$@"
