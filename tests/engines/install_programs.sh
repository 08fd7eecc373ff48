#!/usr/bin/env bash
# Install the programs that tests run: OpenMPI, FUSE, Slurm, OpenSSH, the shells that complete commands, a browser
# without a screen, and the vendor's toolkit. Debian 12, as root. It fails unless every program is found afterwards.
set -euo pipefail
cd "$(dirname "$0")"
PATH=$PATH:/usr/sbin:/sbin

programs=(mpirun fusermount3 zsh fish slurmctld slurmd slurmdbd mariadbd munged ch-run ssh sshd chromium-headless-shell)
if ! type "${programs[@]}" >/dev/null 2>&1; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install --yes --no-install-recommends openmpi-bin fuse3 zsh fish slurm-wlm slurmdbd \
    mariadb-server munge charliecloud openssh-client openssh-server chromium-headless-shell
  type "${programs[@]}" >/dev/null
fi
./install_toolkit.sh
