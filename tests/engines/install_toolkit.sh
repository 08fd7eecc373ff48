#!/usr/bin/env bash
# Install the vendor's toolkit, which starts scripts in training images, in an environment of its own: it pins
# packages that the launcher's tests need newer. Once for each version of this script; the folder of its programs is
# printed last.
set -euo pipefail

version=5.1.4
folder=${XDG_CACHE_HOME:-$HOME/.cache}/recipe-launcher/sagemaker-training-$(sha256sum <"$0" | cut -c1-12)
if [[ ! -f $folder/ready ]]; then
  rm -rf "$folder"
  "${PYTHON:-python3}" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet "sagemaker-training==$version"
  [[ -x $folder/bin/train ]]
  touch "$folder/ready"
fi
echo "$folder/bin"
