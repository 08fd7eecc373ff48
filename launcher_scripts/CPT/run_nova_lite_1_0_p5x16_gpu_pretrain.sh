#!/usr/bin/env bash
# Nova Lite 1.0 Continued Pre-Training on P5; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/nova/nova_1_0/nova_lite/CPT/nova_lite_1_0_p5x16_gpu_pretrain nova "$@"
