#!/usr/bin/env bash
# Build kube-apiserver from the distribution's sources, once: Debian 12, as root, some 8 minutes on 2 cores.
# The binary is kept outside the checkout, in the cache folder that is printed last.
set -euo pipefail

version=1.20.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/recipe-launcher
binary=$cache/kube-apiserver-$version

export DEBIAN_FRONTEND=noninteractive
if ! command -v etcd >/dev/null; then
  apt-get -qq update
  apt-get -qq install --yes --no-install-recommends etcd-server
fi
if [[ -x $binary ]]; then
  echo "$binary"
  exit 0
fi

# The distribution's source packages, from where its binary packages come from.
lists=/etc/apt/sources.list.d
work=$(mktemp -d)
trap 'rm -rf "$work" "$lists/recipe-launcher.sources" "$lists/recipe-launcher.list"' EXIT
if [[ -f $lists/debian.sources ]]; then
  sed 's/^Types: *deb *$/Types: deb-src/' "$lists/debian.sources" >"$lists/recipe-launcher.sources"
else
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$lists/recipe-launcher.list"
fi
apt-get -qq update
apt-get -qq install --yes --no-install-recommends \
  ca-certificates dpkg-dev golang-1.19-go golang-github-modern-go-reflect2-dev jq make rsync
cd "$work"
apt-get -qq source kubernetes
cd kubernetes-*/
# With the vendored 1.0.1 a server built by Go 1.19 crashes on the first custom resource.
rm -rf vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
PATH=/usr/lib/go-1.19/bin:$PATH GOPROXY=off CGO_ENABLED=0 KUBE_GIT_VERSION=v$version KUBE_GIT_MAJOR=1 \
  KUBE_GIT_MINOR=20 KUBE_GIT_TREE_STATE=clean KUBE_GIT_COMMIT=0 make WHAT=cmd/kube-apiserver
mkdir -p "$cache"
built=$(find _output -type f -name kube-apiserver -print -quit)
cp "$built" "$binary.new"
mv "$binary.new" "$binary"
echo "$binary"
