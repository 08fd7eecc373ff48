#!/usr/bin/env bash
# Build kube-apiserver from the distribution's sources, once for each version of this script: Debian 12, as root, some
# 5 minutes on 2 cores. The binary is kept outside the checkout, in the cache folder, and its path is printed last. Where
# apt finds the sources is looked up at each run: a binary that was built earlier must not hide that a build would fail.
set -euo pipefail

version=1.20.2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/recipe-launcher
binary=$cache/kube-apiserver-$(sha256sum <"$0" | cut -c1-12)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$cache/apt/partial"

# The distribution's source packages, from where its binary packages come from. apt reads this list only, into a folder
# of its own, and the system's lists stay as they are.
lists=/etc/apt/sources.list.d
if [[ -f $lists/debian.sources ]]; then
  sed 's/^Types: *deb *$/Types: deb-src/' "$lists/debian.sources" >"$work/packages.sources"
else
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/packages.list"
fi
apt_source=(
  apt-get -qq -o "Dir::Etc::SourceList=$(echo "$work"/packages.*)" -o Dir::Etc::SourceParts=/dev/null
  -o "Dir::State::Lists=$cache/apt" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root
)
"${apt_source[@]}" update
uris=$("${apt_source[@]}" --print-uris source kubernetes)
if [[ $uris != *"$version"*.dsc* ]]; then
  echo "apt has no sources of kubernetes $version: $uris" >&2
  exit 1
fi

export DEBIAN_FRONTEND=noninteractive
if ! command -v etcd >/dev/null; then
  apt-get -qq update
  apt-get -qq install --yes --no-install-recommends etcd-server
fi
if [[ -x $binary ]]; then
  echo "$binary"
  exit 0
fi

apt-get -qq update
apt-get -qq install --yes --no-install-recommends \
  ca-certificates dpkg-dev golang-1.19-go golang-github-modern-go-reflect2-dev jq make rsync
cd "$work"
"${apt_source[@]}" source kubernetes
cd kubernetes-*/
# With the vendored 1.0.1 a server built by Go 1.19 crashes on the first custom resource.
rm -rf vendor/github.com/modern-go/reflect2
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
PATH=/usr/lib/go-1.19/bin:$PATH GOPROXY=off CGO_ENABLED=0 KUBE_GIT_VERSION=v$version KUBE_GIT_MAJOR=1 \
  KUBE_GIT_MINOR=20 KUBE_GIT_TREE_STATE=clean KUBE_GIT_COMMIT=0 make WHAT=cmd/kube-apiserver
built=$(find _output -type f -name kube-apiserver -print -quit)
[[ $("$built" --version) == *"v$version"* ]]
cp "$built" "$binary.new"
mv "$binary.new" "$binary"
echo "$binary"
