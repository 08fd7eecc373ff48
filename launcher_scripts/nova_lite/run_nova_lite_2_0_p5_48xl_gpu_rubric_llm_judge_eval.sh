#!/usr/bin/env bash
# Nova Lite 2.0 Evaluation by an LLM Judge with Rubrics; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" evaluation/nova/nova_2_0/nova_lite/nova_lite_2_0_p5_48xl_gpu_rubric_llm_judge_eval nova "$@"
