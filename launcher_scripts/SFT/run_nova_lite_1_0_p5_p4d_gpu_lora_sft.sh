#!/usr/bin/env bash
# Nova Lite 1.0 Supervised Fine-Tuning with LoRA on P5 or P4d; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_1_0/nova_lite/SFT/nova_lite_1_0_p5_p4d_gpu_lora_sft nova "$@"
