#!/usr/bin/env bash
# Nova Lite 1.0 Evaluation on Your Own Data; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" evaluation/nova/nova_1_0/nova_lite/nova_lite_1_0_p5_48xl_gpu_bring_your_own_dataset_eval nova "$@"
