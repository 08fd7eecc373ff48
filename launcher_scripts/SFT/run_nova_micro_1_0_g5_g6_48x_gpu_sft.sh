#!/usr/bin/env bash
# Nova Micro 1.0 Supervised Fine-Tuning on G5 or G6 48xlarge; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_1_0/nova_micro/SFT/nova_micro_1_0_g5_g6_48x_gpu_sft nova "$@"
