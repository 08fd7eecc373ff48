#!/usr/bin/env bash
# Install what the tests of SageMaker's contract run: OpenMPI, FUSE and the vendor's toolkit. Debian 12, as root.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v mpirun >/dev/null || ! command -v fusermount3 >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install --yes --no-install-recommends openmpi-bin fuse3
fi
./install_toolkit.sh
