#!/usr/bin/env bash
# Nova Lite 2.0 Reinforcement Fine-Tuning on HyperPod; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_2_0/nova_lite/RFT/nova_lite_2_0_p5_gpu_rft nova "$@"
