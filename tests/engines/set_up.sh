#!/usr/bin/env bash
# Set up every engine that tests start, start each once, and print the seconds of each step. Debian 12, as root.
# With XDG_CACHE_HOME=<an empty folder> everything that is not a package of the distribution is built anew. The S3
# server comes with the Python packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

step() {
  local began=$SECONDS
  "${@:2}"
  printf '%-32s %5d s\n' "$1" $((SECONDS - began))
}

step 'programs and toolkit' tests/engines/install_programs.sh
step 'API server' tests/engines/build_kube_apiserver.sh
step 'a start of each engine' .venv/bin/python -m pytest --no-skips \
  tests/kubernetes/test_submit.py::test_makes_the_objects_of_a_bundle \
  tests/backends/test_slurm_jobs.py::test_the_tiny_recipe_trains_on_two_nodes \
  tests/runtime/test_tiers_s3.py::test_uploads_have_the_sdks_checksums_unless_the_store_refuses_them \
  tests/sagemaker/test_contract_programs.py::test_the_toolkit_trains_a_script \
  tests/sagemaker/test_contract_programs.py::test_mpirun_starts_ranks_on_every_host \
  tests/ui/test_page.py::test_the_page_opens_in_a_browser
