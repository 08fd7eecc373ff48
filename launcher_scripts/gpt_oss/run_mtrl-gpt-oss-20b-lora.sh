#!/usr/bin/env bash
# Agentic RFT for GPT OSS 20B Lora; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" fine-tuning/gpt_oss/mtrl-gpt-oss-20b-lora mtrl "$@"
