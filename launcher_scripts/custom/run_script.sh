#!/usr/bin/env bash
# A script of your own; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/custom/script script "$@"
