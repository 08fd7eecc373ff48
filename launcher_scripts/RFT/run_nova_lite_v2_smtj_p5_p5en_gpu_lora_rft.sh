#!/usr/bin/env bash
# Nova Lite 2.0 Reinforcement Fine-Tuning with LoRA as a Training Job; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_2_0/nova_lite/RFT/nova_lite_v2_smtj_p5_p5en_gpu_lora_rft nova "$@"
