#!/usr/bin/env bash
# Nova Lite 2.0 Continued Pre-Training on P5; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/nova/nova_2_0/nova_lite/CPT/nova_lite_2_0_p5x8_gpu_pretrain nova "$@"
