#!/usr/bin/env bash
# An elastic script of your own, 1 to 4 nodes; ../launch.sh has the variables
exec "$(dirname -- "${BASH_SOURCE[0]}")/../launch.sh" training/custom/elastic_script elastic_script "$@"
