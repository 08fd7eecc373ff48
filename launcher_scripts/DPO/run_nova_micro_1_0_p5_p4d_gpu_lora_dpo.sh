#!/usr/bin/env bash
# Nova Micro 1.0 Direct Preference Optimization with LoRA on P5 or P4d; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_1_0/nova_micro/DPO/nova_micro_1_0_p5_p4d_gpu_lora_dpo nova "$@"
