#!/usr/bin/env bash
# Nova Micro 1.0 Evaluation on a Text Benchmark; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" evaluation/nova/nova_1_0/nova_micro/nova_micro_1_0_p5_48xl_gpu_general_text_benchmark_eval nova "$@"
