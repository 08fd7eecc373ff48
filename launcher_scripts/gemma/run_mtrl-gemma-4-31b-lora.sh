#!/usr/bin/env bash
# Agentic RFT for Gemma 4 31B Lora IT; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gemma/mtrl-gemma-4-31b-lora mtrl "$@"
