#!/usr/bin/env bash
# Data Distillation with Nova Pro 1.0 as the Teacher on R5; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_1_0/nova_pro/distill/nova_pro_1_0_r5_cpu_distill nova "$@"
