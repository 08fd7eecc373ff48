#!/usr/bin/env bash
# Agentic RFT for Qwen 3.6 27B Lora; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/qwen-0_7_0/mtrl-qwen-3-dot-6-27b-lora mtrl "$@"
