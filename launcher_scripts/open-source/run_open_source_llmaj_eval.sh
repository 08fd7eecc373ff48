#!/usr/bin/env bash
# Evaluation of an open-weight model's answers by a judge model; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" evaluation/open-source/open_source_llmaj_eval judge "$@"
