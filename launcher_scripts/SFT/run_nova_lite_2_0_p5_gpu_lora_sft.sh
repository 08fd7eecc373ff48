#!/usr/bin/env bash
# Nova Lite 2.0 Supervised Fine-Tuning with LoRA on P5; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_2_0/nova_lite/SFT/nova_lite_2_0_p5_gpu_lora_sft nova "$@"
