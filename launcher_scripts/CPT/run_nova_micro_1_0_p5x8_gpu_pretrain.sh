#!/usr/bin/env bash
# Nova Micro 1.0 Continued Pre-Training on P5; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/nova/nova_1_0/nova_micro/CPT/nova_micro_1_0_p5x8_gpu_pretrain nova "$@"
