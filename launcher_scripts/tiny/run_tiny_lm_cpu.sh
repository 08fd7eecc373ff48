#!/usr/bin/env bash
# Tiny byte-level language model on CPU; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/tiny/tiny_lm_cpu tiny "$@"
