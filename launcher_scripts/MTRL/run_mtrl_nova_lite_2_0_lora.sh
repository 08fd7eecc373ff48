#!/usr/bin/env bash
# Agentic RFT for Nova Lite 2.0 Lora; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/nova/nova_2_0/nova_lite/MTRL/mtrl_nova_lite_2_0_lora mtrl "$@"
