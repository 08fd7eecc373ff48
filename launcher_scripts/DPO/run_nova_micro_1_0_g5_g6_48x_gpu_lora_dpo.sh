#!/usr/bin/env bash
# Nova Micro 1.0 Direct Preference Optimization with LoRA on G5 or G6 48xlarge; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_1_0/nova_micro/DPO/nova_micro_1_0_g5_g6_48x_gpu_lora_dpo nova "$@"
