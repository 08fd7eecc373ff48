#!/usr/bin/env bash
# Nova Pro 1.0 Direct Preference Optimization on P5; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_1_0/nova_pro/DPO/nova_pro_1_0_p5_gpu_dpo nova "$@"
