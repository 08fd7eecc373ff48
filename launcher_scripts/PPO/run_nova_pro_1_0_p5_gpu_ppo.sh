#!/usr/bin/env bash
# Nova Pro 1.0 Proximal Policy Optimization on P5; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_1_0/nova_pro/PPO/nova_pro_1_0_p5_gpu_ppo nova "$@"
