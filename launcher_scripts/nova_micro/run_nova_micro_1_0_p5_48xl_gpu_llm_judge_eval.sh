#!/usr/bin/env bash
# Nova Micro 1.0 Evaluation by an LLM Judge; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" evaluation/nova/nova_1_0/nova_micro/nova_micro_1_0_p5_48xl_gpu_llm_judge_eval nova "$@"
