#!/usr/bin/env bash
# Evaluation of an open-weight model on a benchmark or on data of your own; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" evaluation/open-source/open_source_deterministic_eval benchmark "$@"
